"""Short-lived links to pictures: an address that nobody can guess, for as long as the config says."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.clock import Clock
from supervisor.errors import CallerError

PATH = "/v1/images/files/"
_MOST_BYTES = 256 * 2**20
_TYPES = {"png": "image/png", "jpeg": "image/jpeg"}


@dataclass(frozen=True, slots=True)
class Linked:
    """A picture behind a link."""

    data: bytes
    content_type: str
    until: float


class Links:
    """Holds pictures in memory; the oldest go when there are too many bytes."""

    def __init__(self, clock: Clock, keep: Callable[[], float]) -> None:
        self._clock = clock
        self._keep = keep
        self._linked: dict[str, Linked] = {}

    def add(self, data: bytes, output_format: str) -> str:
        """The path of a new link."""
        self._forget_old(len(data))
        name = f"{secrets.token_urlsafe(24)}.{output_format}"
        self._linked[name] = Linked(data, _TYPES[output_format], self._clock.monotonic() + self._keep())
        return PATH + name

    def get(self, name: str) -> Linked:
        """The picture.

        Raises:
            CallerError: ``image_link_expired``.
        """
        found = self._linked.get(name)
        if found is None or found.until <= self._clock.monotonic():
            raise CallerError("image_link_expired", "There is no picture behind this link, or no longer.")
        return found

    def _forget_old(self, coming: int) -> None:
        now = self._clock.monotonic()
        self._linked = {name: one for name, one in self._linked.items() if one.until > now}
        held = sum(len(one.data) for one in self._linked.values()) + coming
        for name, one in tuple(self._linked.items()):
            if held <= _MOST_BYTES:
                return
            held -= len(one.data)
            del self._linked[name]
