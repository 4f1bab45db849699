"""``cache list`` and ``cache clear``: conversations that are kept on disk, with a daemon or without."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

if TYPE_CHECKING:
    from supervisor.cli.client import DaemonClient

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also on a terminal.")]
UrlOption = Annotated[str, typer.Option("--url", envvar="ENGINEHOUSE_URL", help="Address of the running daemon.")]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="ENGINEHOUSE_TOKEN_FILE", help="File that holds a token of that daemon."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Config file; else $ENGINEHOUSE_CONFIG, the XDG folder, /etc/enginehouse."),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only those of this model, by its id.")]

_URL = "http://127.0.0.1:8080"
_PATH = "/admin/v1/cache"


def cache_list(
    as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None, config: ConfigOption = None
) -> None:
    """List the conversations that are kept on disk; without a daemon from the folder itself."""
    from supervisor.cli.offline import kept_rows  # noqa: PLC0415  only when it runs

    answer = _asked(_client(url, token_file), "GET", _PATH, kept_rows(config) if url == _URL else None)
    _show_rows(answer.get("files") or [], as_json=as_json)


def cache_clear(
    model: ModelOption = None,
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove the conversations that are kept on disk: they are computed anew when they come back."""
    from supervisor.cli.offline import clear_kept  # noqa: PLC0415  only when it runs
    from supervisor.cli.output import print_json, print_rich, wants_json  # noqa: PLC0415  only when it runs
    from supervisor.units import format_size  # noqa: PLC0415  only when it runs

    path = f"{_PATH}/clear" + (f"?model={quote(model, safe='')}" if model else "")
    offline = clear_kept(config, model) if url == _URL else None
    gone = _asked(_client(url, token_file), "POST", path, offline)
    if wants_json(asked=as_json):
        print_json(gone)
    else:
        print_rich(f"{gone.get('files')} conversations removed, {format_size(gone.get('bytes'))}.")


def _asked(client: DaemonClient, method: str, path: str, offline: Any) -> dict[str, Any]:
    from supervisor.cli.client import DaemonError  # noqa: PLC0415  only when it runs

    try:
        answer = client.get(path) if method == "GET" else client.post(path)
    except DaemonError as error:
        if offline is None or error.code != "daemon_unreachable":
            raise
        answer = offline()
    if not isinstance(answer, dict):
        raise DaemonError("daemon_unknown_answer", f"{client.url} gave no list of conversations: is it Enginehouse's?")
    return answer


def _show_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from supervisor.cli.output import Column, plain, print_json, print_rich, table, wants_json  # noqa: PLC0415  as above
    from supervisor.units import format_duration, format_size  # noqa: PLC0415  as above

    if wants_json(asked=as_json):
        print_json(rows)
        return
    columns = (
        plain("model", "model"),
        plain("messages", "messages"),
        plain("tokens", "tokens"),
        Column("size", lambda row: format_size(row.get("bytes"))),
        Column("saves", lambda row: format_duration(row.get("seconds_saved") or 0)),
        Column("used", lambda row: _moment(row.get("used_at"))),
        plain("restored", "uses"),
    )
    print_rich(table("Conversations on disk", columns, rows))


def _moment(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _client(url: str, token_file: Path | None) -> DaemonClient:
    from supervisor.cli.client import DaemonClient, read_token  # noqa: PLC0415  only when it runs

    return DaemonClient(url, read_token(token_file))
