"""``why`` and the changes of one model by hand."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from supervisor.cli.client import DaemonClient
from supervisor.cli.output import Column, plain, print_json, print_rich, table, wants_json

_CHANGED = {"load": "Loaded", "unload": "Unloaded", "pin": "Pinned", "unpin": "No longer pinned"}
# A large model from a slow disk; the daemon itself gives up long before.
_LOAD_SECONDS = 3600.0

_STORY_COLUMNS = (
    Column("after", lambda row: f"{row.get('after_seconds', 0):+.2f} s"),
    plain("what", "what"),
)
_MODEL_COLUMNS = (
    plain("model", "model"),
    plain("state", "state"),
    plain("pinned", "pinned"),
    plain("build", "build"),
    plain("pid", "pid"),
)


def explain_request(client: DaemonClient, request_id: str, *, as_json: bool) -> int:
    """Why a request went as it did: its story for people, all that is known of it for scripts."""
    found = client.get(f"/admin/v1/requests/{quote(request_id, safe='')}")
    if wants_json(asked=as_json):
        print_json(found)
    else:
        print_rich(_heading(found))
        print_rich(table("Since it came", _STORY_COLUMNS, found.get("story") or []))
    return 0


def change_model(client: DaemonClient, name: str, change: str, *, as_json: bool) -> int:
    """Load, unload, pin or unpin a model; shows how it is then."""
    row = client.post(f"/admin/v1/models/{quote(name)}/{change}", timeout_seconds=_LOAD_SECONDS)
    if wants_json(asked=as_json):
        print_json(row)
    else:
        print_rich(table(_CHANGED[change], _MODEL_COLUMNS, [row]))
    return 0


def _heading(found: dict[str, Any]) -> Any:
    from rich.text import Text  # noqa: PLC0415  as text: a name in square brackets is no markup

    who = f" of {found['caller']}" if found.get("caller") else ""
    model = f" for {found['model']}" if found.get("model") else ""
    return Text(f"Request {found.get('request_id')}{who}{model}, came {found.get('came_at')}: {found.get('state')}")
