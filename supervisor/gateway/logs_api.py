"""``/admin/v1/models/{id}/logs``: what a model's engine said, and, followed, what it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
from aiohttp import web

from supervisor.errors import CallerError
from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.exchange import exchange_of
from supervisor.processes.log_lines import log_path, older_path
from supervisor.processes.log_reader import LoggedLine, LogReader

_LINES = 400
_MOST_LINES = 20_000
_LOOK_SECONDS = 0.5
_HEARTBEAT_LOOKS = 30


class LogsApi:
    """Reads the files in which engines' lines are kept, without secrets; ``folder`` None: none are kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def routes(self) -> list[web.RouteDef]:
        """What to mount. Ids may hold slashes."""
        return [web.get("/admin/v1/models/{id:.+}/logs", self.logs, allow_head=False)]

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """``GET /admin/v1/models/{id}/logs``: the last lines, ``?lines=N`` of them; ``?follow=1`` goes on as events."""
        model = request.match_info["id"]
        path = None if self._folder is None else log_path(self._folder, model)
        follow = request.query.get("follow") in {"1", "true"}
        exists = path is not None and await anyio.to_thread.run_sync(_is_there, path)
        if path is None or not (exists or follow):
            raise CallerError("not_found", f"There is no log of {model!r}: a model has one once it was started.")
        reader = LogReader(path)
        try:
            last = await anyio.to_thread.run_sync(_last, reader, _wanted(request))
            if not follow:
                return web.Response(body=orjson.dumps({"lines": last}), content_type="application/json")
            return await _follow(request, reader, last)
        finally:
            with anyio.CancelScope(shield=True), suppress(OSError):
                await anyio.to_thread.run_sync(lambda: list(reader.close()))


async def _follow(request: web.Request, reader: LogReader, lines: list[dict[str, Any]]) -> web.StreamResponse:
    client = ClientStream(request, exchange_of(request))
    await client.send(_frame(lines))
    quiet = 0
    while True:
        await anyio.sleep(_LOOK_SECONDS)
        lines = await anyio.to_thread.run_sync(_last, reader, _MOST_LINES)
        quiet = 0 if lines else quiet + 1
        if lines:
            await client.send(_frame(lines))
        elif quiet % _HEARTBEAT_LOOKS == 0:
            await client.send(b": heartbeat\n\n")


def _frame(lines: list[dict[str, Any]]) -> bytes:
    return b"event: lines\ndata: " + orjson.dumps(lines) + b"\n\n"


def _last(reader: LogReader, count: int) -> list[dict[str, Any]]:
    return [_row(line) for line in deque(_read(reader), maxlen=count)]


def _read(reader: LogReader) -> Iterable[LoggedLine]:
    try:
        yield from reader.new()
    except OSError as error:
        yield LoggedLine(None, None, "note", f"the log can't be read: {error.strerror or error}")


def _row(line: LoggedLine) -> dict[str, Any]:
    return {"at": line.at, "launch": line.launch, "kind": line.kind, "line": line.text}


def _is_there(path: Path) -> bool:
    return path.exists() or older_path(path).exists()


def _wanted(request: web.Request) -> int:
    said = request.query.get("lines", "")
    return min(_MOST_LINES, int(said)) if said.isascii() and said.isdigit() and len(said) <= 9 else _LINES  # noqa: PLR2004
