"""What a request says to the supervisor rather than to the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.errors import CallerError
from supervisor.units import parse_duration

KEEP_ALIVE_HEADER = "x-enginehouse-keep-alive"
_BODY_KEY = "keep_alive"
_LONGEST_SHOWN = 100
_FOREVER = frozenset({"never", "forever", "-1"})


def take_keep_alive(headers: Mapping[str, str], body: dict[str, Any]) -> float | None:
    """How long the instance is to stay idle after this request, in seconds; None when nothing is said.

    The header goes over the body's ``keep_alive``, which is taken out: it is not for the engine. Both take a duration
    (``10m``), ``0``, ``never`` or ``forever``; the body also takes seconds as a number, negative for ever.

    Raises:
        CallerError: ``invalid_request``: it can't be read.
    """
    in_body = body.pop(_BODY_KEY, None)
    said = headers.get(KEEP_ALIVE_HEADER)
    return _seconds(in_body if said is None else said, _BODY_KEY if said is None else KEEP_ALIVE_HEADER)


def _seconds(said: object, where: str) -> float | None:
    if said is None:
        return None
    if isinstance(said, int | float) and not isinstance(said, bool) and not math.isnan(said):
        return math.inf if said < 0 else float(said)
    if isinstance(said, str) and said.strip().lower() in _FOREVER:
        return math.inf
    try:
        return parse_duration(str(said))
    except ValueError as error:
        words = str(error) if len(str(said)) < _LONGEST_SHOWN else "it is far too long"
        raise CallerError("invalid_request", f"`{where}` can't be read: {words}, or never.", param=where) from error
