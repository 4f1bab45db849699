"""What a reader of server-sent events has seen."""

from __future__ import annotations

from aiohttp import web


def last_seen(request: web.Request) -> int | None:
    """The last id that the client saw, by ``Last-Event-ID`` or ``?after=``; one that is none of ours counts as 0."""
    said = request.headers.get("Last-Event-ID") or request.query.get("after")
    if said is None:
        return None
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 18 else 0  # noqa: PLR2004  fits 64 bits
