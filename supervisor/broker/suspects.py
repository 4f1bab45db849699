"""Which request bodies were there when an engine crashed, and which of them are refused. Pure: no clock, no loop.

A body that was on two launches when they crashed is *guilty* and refused for a while; one that was on one is
*suspected* until an engine has answered it. Where request after request of a model is found guilty and none is
answered, it is the engine that is broken, and all are cleared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

HELD_SECONDS = 600.0
MAX_BODIES = 1024
_CRASHES_OF_THE_GUILTY = 2
# Guilty bodies of one model, with no answer between them, that make it the engine's own fault.
MAX_GUILTY = 2


def body_key(payload: bytes) -> str:
    """What a body is known by; the payload names its model."""
    return blake2b(payload, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One body: the launches that crashed with it, and the monotonic second of the last such crash."""

    model: str
    launches: tuple[str, ...]
    last: float

    @property
    def guilty(self) -> bool:
        """Whether it was there at two crashes."""
        return len(self.launches) >= _CRASHES_OF_THE_GUILTY


class Suspects:
    """The table, bounded in bodies and in time; ``now`` is monotonic seconds."""

    def __init__(self, held: float = HELD_SECONDS, most: int = MAX_BODIES) -> None:
        self._held = held
        self._most = most
        self._bodies: dict[str, Suspicion] = {}  # the longest untouched first
        self._streaks: dict[str, int] = {}
        self._newest = -math.inf

    def empty(self, now: float) -> bool:
        """Whether nobody is suspected: then no body needs a key."""
        if self._bodies and now - self._newest >= self._held:
            self._bodies.clear()
            self._streaks.clear()
        return not self._bodies

    def crashed(self, model: str, launch: str, bodies: Sequence[str], now: float) -> frozenset[str]:
        """Note who was on a launch when it crashed; may be told in parts.

        Returns:
            The launches whose crashes are blamed on a request, this one among them; empty: on nobody.
        """
        self._forget(now)
        for body in dict.fromkeys(bodies):
            self._note(model, launch, body, now)
        guilty = [body for body, known in self._bodies.items() if known.guilty and launch in known.launches]
        if not guilty:
            return frozenset()
        if self._streaks.get(model, 0) > MAX_GUILTY:
            self._clear(model)
            return frozenset()
        return frozenset(at for body in guilty for at in self._bodies[body].launches)

    def refused_for(self, body: str, now: float) -> float | None:
        """Seconds for which a guilty body is still refused; None: it is not."""
        known = self._bodies.get(body)
        if known is None or not known.guilty:
            return None
        rest = known.last + self._held - now
        return rest if rest > 0 else None

    def suspected(self, body: str, now: float) -> bool:
        """Whether it was there at a crash and has not been answered since."""
        known = self._bodies.get(body)
        return known is not None and now - known.last < self._held

    def answered(self, model: str, body: str) -> None:
        """An engine answered it: it kills no engine, and the engine can answer."""
        self._streaks.pop(model, None)
        known = self._bodies.get(body)
        if known is not None and not known.guilty:
            del self._bodies[body]

    def __len__(self) -> int:
        return len(self._bodies)

    def _note(self, model: str, launch: str, body: str, now: float) -> None:
        known = self._bodies.pop(body, None)
        launches = known.launches if known else ()
        if launch not in launches:
            launches = (*launches, launch)
        noted = Suspicion(model, launches[-_CRASHES_OF_THE_GUILTY:], now)
        if noted.guilty and not (known and known.guilty):
            self._streaks[model] = self._streaks.get(model, 0) + 1
        self._bodies[body] = noted
        self._newest = now
        if len(self._bodies) > self._most:
            del self._bodies[next(iter(self._bodies))]

    def _clear(self, model: str) -> None:
        self._drop(body for body, known in self._bodies.items() if known.model == model)
        self._streaks.pop(model, None)

    def _forget(self, now: float) -> None:
        self._drop(body for body, known in self._bodies.items() if now - known.last >= self._held)
        held = {known.model for known in self._bodies.values()}
        self._streaks = {model: count for model, count in self._streaks.items() if model in held}

    def _drop(self, bodies: Iterable[str]) -> None:
        for body in tuple(bodies):
            del self._bodies[body]
