"""The panel that a first start ends in: where it listens, what it has, and a request to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Mapping[str, Any]
"""The ``/admin/v1/status`` document, and beside it: ``address`` (``http://…``), ``models`` (rows of ``/v1/models``),
``threads`` (``{"value", "reason"}``), and ``devices`` (names, None: not known) in each row of ``builds``."""

_PROMPT = "Say hello in five words."
_MAX_TOKENS = 32
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def panel(status: Status) -> RenderableType:
    """The panel for a terminal. The command goes below it by itself (``curl_line``): a frame can't be copied from."""
    from rich.panel import Panel  # noqa: PLC0415  a daemon without a terminal never needs rich
    from rich.table import Table  # noqa: PLC0415  as above
    from rich.text import Text  # noqa: PLC0415  as text: a path in square brackets is no markup

    facts = Table.grid(padding=(0, 2))
    for name, value in panel_facts(status):
        facts.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    return Panel(facts, title="Enginehouse", title_align="left", expand=False)


def plain_panel(status: Status) -> str:
    """The same as text, for a pipe or a dumb terminal."""
    facts = panel_facts(status)
    width = max(len(name) for name, _ in facts)
    lines = ["Enginehouse", *(f"  {name:<{width}}  {value}" for name, value in facts)]
    command = curl_line(status)
    return "\n".join([*lines, *([] if command is None else [command])]) + "\n"


def panel_facts(status: Status) -> list[tuple[str, str]]:
    """What the panel says, as (name, value): address, models, builds, devices, threads."""
    models, builds = status.get("models") or [], status.get("builds") or []
    return [
        ("address", str(status.get("address") or "unknown")),
        ("models", "\n".join(map(_model, models)) or "none: put GGUF files into data_dir, or name them in a config"),
        ("builds", "\n".join(map(_build, builds)) or "none: put llama-server on PATH, or name it in a config"),
        ("devices", _devices(builds)),
        ("threads", _threads(status.get("threads"))),
        ("first", "the first request of a model starts its engine, and waits for it"),
    ]


def curl_line(status: Status) -> str | None:
    """One command that gets a chat answer from the first model that chats; None without one."""
    address = status.get("address")
    chats = [row["id"] for row in status.get("models") or [] if "chat" in (row.get("serves") or ("chat",))]
    if not address or not chats:
        return None
    for everywhere, here in _EVERYWHERE.items():
        address = address.replace(f"//{everywhere}:", f"//{here}:")
    body = {"model": chats[0], "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": _MAX_TOKENS}
    return shlex.join(
        ["curl", "-s", f"{address}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    )


def _model(row: Mapping[str, Any]) -> str:
    aliases, serves = row.get("aliases") or (), row.get("serves") or ()
    also = f" (also {', '.join(aliases)})" if aliases else ""
    return f"{row.get('id')}{also}{': ' if serves else ''}{', '.join(serves)}"


def _build(row: Mapping[str, Any]) -> str:
    version = f", {row['version']}" if row.get("version") else ""
    health = row.get("health", "usable")
    # Only what is unusual is worth a word.
    unusual = "" if health == "usable" else f": {health}{', ' if row.get('reason') else ''}{row.get('reason') or ''}"
    return f"{row.get('name')} ({row.get('engine')}{version}){unusual}"


def _devices(builds: list[Mapping[str, Any]]) -> str:
    listed = {device: None for row in builds for device in row.get("devices") or ()}
    if listed:
        return ", ".join(listed)
    if builds and all(row.get("devices") is not None for row in builds):
        return "CPU only: no build lists another device"
    return "unknown"


def _threads(threads: Mapping[str, Any] | None) -> str:
    if not threads or threads.get("value") is None:
        return "unknown"
    reason = threads.get("reason")
    return f"{threads['value']}{f': {reason}' if reason else ''}"
