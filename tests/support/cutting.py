"""Streams cut as a network may cut them, for tests that the cuts must not matter to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import SseSplitter
from supervisor.gateway.translate.tool_calls import CallWatch
from supervisor.gateway.translate.watched import Events, Translation


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces; places beyond its end are taken as they come round."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def translated(pieces: Iterable[bytes], events: Callable[[], Events], watch: CallWatch | None = None) -> bytes:
    """What a client gets of an engine's stream that arrives in these pieces."""
    passing = PassThrough(lambda data: b'"prompt_progress":' in data, keep_progress=False, side_by_side=False)
    translation = Translation(passing, watch, events())
    splitter = SseSplitter()
    return b"".join(translation.pick(splitter.feed(piece)) for piece in pieces)
