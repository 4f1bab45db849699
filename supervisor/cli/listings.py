"""``models``, ``builds``, ``status`` and ``events``: what the running daemon says, for people or for scripts."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from supervisor.cli.client import DaemonClient, DaemonError, StreamedEvent
from supervisor.cli.output import Column, plain, print_json, print_rich, table, wants_json
from supervisor.errors import SupervisorError
from supervisor.units import format_duration, format_size

Rows = list[dict[str, Any]]
Offline = Callable[[], Rows]
"""Gives the rows without a daemon, from the config and the state folder."""

_STATUS = "/admin/v1/status"
_CHANGED = {"clear": "Cleared", "pin": "Pinned", "unpin": "No longer pinned"}

_MODEL_COLUMNS = (
    plain("model", "id"),
    plain("aliases", "aliases"),
    plain("serves", "capabilities"),
    plain("state", "state"),
)
_BUILD_COLUMNS = (
    plain("build", "name"),
    plain("engine", "engine"),
    plain("version", "version"),
    Column("health", lambda row: f"{row.get('health') or '-'}{', pinned' if row.get('pinned') else ''}"),
    Column("strikes", lambda row: str(len(row.get("strikes") or []))),
    plain("devices", "devices"),
    plain("reason", "reason"),
)
_INSTANCE_COLUMNS = (
    plain("model", "model"),
    Column("state", lambda row: _state(row.get("state"), row.get("load_share"))),
    plain("build", "build"),
    plain("pid", "pid"),
    Column("leases", lambda row: f"{row.get('leases', '-')} of {row.get('slots') or '-'}"),
    Column("last exit", lambda row: _last_exit(row.get("last_exit"))),
)
_LEDGER_COLUMNS = (
    plain("pool", "pool"),
    Column("budget", lambda row: format_size(row.get("budget"))),
    Column("reserved", lambda row: format_size(row.get("reserved"))),
    Column("foreign", lambda row: format_size(row.get("foreign"))),
    Column("free", lambda row: format_size(row.get("free"))),
)
_TICKET_COLUMNS = (
    plain("request", "request_id"),
    plain("caller", "caller"),
    plain("model", "model"),
    plain("lane", "lane"),
    Column("waited", lambda row: format_duration(row.get("waited_seconds") or 0)),
    Column(
        "expected", lambda row: "-" if (wait := row.get("expected_wait_seconds")) is None else format_duration(wait)
    ),
    plain("why", "why"),
)


def list_models(client: DaemonClient, *, as_json: bool, offline: Offline | None = None) -> int:
    """Models that can be asked for, each with its instance's state (None: never started).

    ``offline`` answers where no daemon listens; without it that is an error.
    """
    rows = _ask(lambda: _models(client), offline)
    _show("Models", _MODEL_COLUMNS, rows, as_json=as_json)
    return 0


def list_builds(client: DaemonClient, *, as_json: bool, offline: Offline | None = None) -> int:
    """Builds that the daemon knows, with their health; ``offline`` as in ``list_models``."""
    rows = _ask(lambda: _rows(client.get(_STATUS), "builds"), offline)
    _show("Builds", _BUILD_COLUMNS, rows, as_json=as_json)
    return 0


def inspect_build(client: DaemonClient, name: str, *, as_json: bool, offline: Offline | None = None) -> int:
    """All that is known of one build, by its name, or by what its name or its fingerprint begins with.

    Raises:
        SupervisorError: ``build_not_found``; the message lists those that there are.
    """
    rows = _ask(lambda: _rows(client.get(_STATUS), "builds"), offline)
    found = [row for row in rows if row.get("name") == name]
    found = found or [row for row in rows if any(str(row.get(key)).startswith(name) for key in ("name", "fingerprint"))]
    if len(found) != 1:
        known = ", ".join(str(row.get("name")) for row in rows) or "none"
        what = "several builds match" if found else "no build is called"
        raise SupervisorError("build_not_found", f"{what} {name!r}; there are: {known}.", build=name)
    if wants_json(asked=as_json):
        print_json(found[0])
    else:
        facts = [{"fact": key, "value": value} for key, value in found[0].items()]
        print_rich(table(f"Build {name}", (plain("", "fact"), plain("", "value")), facts))
    return 0


def change_build(
    client: DaemonClient, name: str, change: str, *, as_json: bool, offline: Callable[[], dict[str, Any]] | None
) -> int:
    """Clear, pin or unpin a build, with the daemon or, where none listens, by ``offline``; shows its row."""
    try:
        row = client.post(f"/admin/v1/builds/{quote(name)}/{change}")
    except DaemonError as error:
        if offline is None or error.code != "daemon_unreachable":
            raise
        row = offline()
    if wants_json(asked=as_json):
        print_json(row)
    else:
        print_rich(table(_CHANGED[change], _BUILD_COLUMNS, [row]))
    return 0


def show_status(client: DaemonClient, *, as_json: bool) -> int:
    """The daemon's status document, or its tables."""
    status = client.get(_STATUS)
    if wants_json(asked=as_json):
        print_json(status)
        return 0
    _rows(status, "instances")  # an answer of another program is said to be one before anything is shown
    uptime = format_duration(status.get("uptime_seconds") or 0)
    print_rich(f"Enginehouse {status.get('version', '?')} at {client.url}, up {uptime}")
    ledger = [{"pool": pool, **entry} for pool, entry in (status.get("ledger") or {}).items()]
    tickets = (status.get("queue") or {}).get("tickets") or []
    for title, columns, rows in (
        ("Instances", _INSTANCE_COLUMNS, status["instances"]),
        ("Builds", _BUILD_COLUMNS, status.get("builds") or []),
        ("Memory", _LEDGER_COLUMNS, ledger),
        ("Waiting", _TICKET_COLUMNS, tickets),
    ):
        if columns is _LEDGER_COLUMNS and not rows:
            continue  # no book is kept yet: "none" would say that no memory is used
        print_rich("")
        print_rich(table(title, columns, rows))
    return 0


def show_events(client: DaemonClient, *, after: int | None, limit: int | None, as_json: bool) -> int:
    """Events until ``limit`` of them were shown or the daemon ends: one line each, JSON for scripts."""
    write = _event_json if wants_json(asked=as_json) else _event_line
    shown: Iterator[StreamedEvent] = itertools.islice(client.events(after), limit)
    for event in shown:
        sys.stdout.write(write(event) + "\n")
        sys.stdout.flush()
    return 0


def _models(client: DaemonClient) -> Rows:
    listed = _rows(client.get("/v1/models"), "data")
    states = {row.get("model"): row.get("state") for row in _rows(client.get(_STATUS), "instances")}
    return [{**row, "state": states.get(row.get("id"))} for row in listed]


def _ask(online: Callable[[], Rows], offline: Offline | None) -> Rows:
    try:
        return online()
    except DaemonError as error:
        if offline is None or error.code != "daemon_unreachable":
            raise
        return offline()


def _rows(document: Any, key: str) -> Rows:
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DaemonError("daemon_unknown_answer", f"the answer holds no list of {key}: is it Enginehouse's?", key=key)
    return rows


def _show(title: str, columns: Sequence[Column], rows: Rows, *, as_json: bool) -> None:
    if wants_json(asked=as_json):
        print_json(rows)
    else:
        print_rich(table(title, columns, rows))


def _state(state: str | None, load_share: float | None) -> str:
    return (state or "-") + ("" if load_share is None else f", {load_share:.0%} in memory")


def _last_exit(report: Mapping[str, Any] | None) -> str:
    if not report:
        return "-"
    planned = "as asked" if report.get("planned") else f"{report.get('kind')}, {report.get('blames')}"
    return f"{planned} ({report.get('phase')})"


def _event_json(event: StreamedEvent) -> str:
    return json.dumps({"id": event.number, "event": event.name, **event.data})


def _event_line(event: StreamedEvent) -> str:
    data = dict(event.data)
    at, level = data.pop("at", None), data.pop("level", "")
    moment = datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S") if at else "--:--:--"
    facts = " ".join(f"{key}={json.dumps(value)}" for key, value in data.items() if value is not None)
    return f"{moment} {level:<7} {event.name:<20} {facts}"
