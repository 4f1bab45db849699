"""Gives out the status page: a few static files that know nothing; what they show they ask for, with a token."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import orjson
from aiohttp import web

from supervisor.errors import CallerError

_FOLDER = Path(__file__).parent
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
# Nothing from elsewhere, nothing in line, no frame around it: a string of a model's that slipped into the page as
# markup could still do nothing. ``data:`` and ``blob:`` are pictures that the playground got or was given.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",  # asked again each time, answered 304 while the daemon is the same
        "Vary": "Accept, Accept-Encoding",
    }
)
_HINT = {
    "name": "enginehouse",
    "openai_base_url": "/v1",
    "models": "/v1/models",
    "status": "/admin/v1/status",
    "events": "/admin/v1/events",
    "health": ["/healthz", "/readyz"],
    "metrics": "/metrics",
    "status_page": "/ (in a browser)",
}


@dataclass(frozen=True, slots=True)
class _File:
    """One file as it goes out."""

    content_type: str
    plain: bytes
    packed: bytes
    tag: str


class StatusPage:
    """The files are read at the first request, and kept."""

    def __init__(self) -> None:
        self._files: Mapping[str, _File] | None = None

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [web.get("/", self.root), web.get("/status_page/{file}", self.file)]

    async def root(self, request: web.Request) -> web.Response:
        """``GET /``: the status page for browsers, where things are for everybody else."""
        if "text/html" in request.headers.get("Accept", ""):
            return self._answer(request, "index.html")
        body = orjson.dumps(_HINT, option=orjson.OPT_INDENT_2)
        return web.Response(body=body, content_type="application/json", headers={"Vary": "Accept"})

    async def file(self, request: web.Request) -> web.Response:
        """``GET /status_page/{file}``: a part of the status page."""
        return self._answer(request, request.match_info["file"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        if self._files is None:
            self._files = read_files()
        found = self._files.get(name)
        if found is None:
            raise CallerError("not_found", f"The status page has no file {name!r}.")
        headers = {**_HEADERS, "ETag": found.tag}
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = found.content_type
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=found.packed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=found.plain, headers=headers)


def read_files() -> Mapping[str, _File]:
    """All files of the page, by name; some dozens of kilobytes in all."""
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}


def _read(path: Path) -> _File:
    plain = path.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:16]}"'
    return _File(_TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), tag)
