"""Which requests were on an engine when it crashed: who is refused, who waits for a turn of its own, whom to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio

from supervisor.broker.lease import Lease
from supervisor.broker.suspects import HELD_SECONDS, Suspects, body_key
from supervisor.clock import Clock
from supervisor.errors import AdmissionError, UpstreamError
from supervisor.events import EventBus
from supervisor.instances.events import CrashBlamedOnRequest
from supervisor.units import format_duration


class Turn:
    """A suspected body's right to be on its model's engine without another suspected one; give it back in any case."""

    def __init__(self, lock: anyio.Lock, longest: float) -> None:
        self._lock = lock
        self._longest = longest
        self._held = False

    async def take(self) -> None:
        """Wait until it is this one's turn, as long as a request may wait.

        Raises:
            AdmissionError: ``queue_timeout``.
        """
        with anyio.move_on_after(self._longest):
            await self._lock.acquire()
            self._held = True
        if not self._held:
            raise AdmissionError(
                "queue_timeout",
                f"waited {self._longest:g} s: what was on an engine when it crashed is asked again one at a time",
                retry_after=30.0,
            )

    def give_back(self) -> None:
        """The next one may begin; more than once does nothing more."""
        if self._held:
            self._held = False
            self._lock.release()


class CrashBook:
    """Owner of the table of suspects.

    Args:
        leases_of: leases held on a model's instance now.
        max_wait: seconds that a request may wait for its turn.
    """

    def __init__(
        self,
        leases_of: Callable[[str], Iterable[Lease]],
        max_wait: Callable[[], float],
        clock: Clock,
        bus: EventBus,
    ) -> None:
        self._leases_of = leases_of
        self._max_wait = max_wait
        self._clock = clock
        self._bus = bus
        self._suspects = Suspects()
        self._locks: dict[str, anyio.Lock] = {}

    def crashed(self, model: str, launch: str) -> frozenset[str]:
        """A launch has ended unasked: note who was on it, before their leases are broken.

        May be asked again at a later step of the same end.

        Returns:
            Ids of the launches whose crashes a request is to blame for; empty: nobody is.
        """
        now = self._clock.monotonic()
        bodies = [
            body_key(lease.request.body)
            for lease in self._leases_of(model)
            if lease.request.body and not lease.engine_done
        ]
        blamed = self._suspects.crashed(model, launch, bodies, now)
        if blamed and bodies:
            self._bus.publish(CrashBlamedOnRequest(model, tuple(sorted(blamed)), HELD_SECONDS))
        return blamed

    def refuse_guilty(self, model: str, body: bytes) -> None:
        """Let a body pass, unless it was there at two crashes.

        Raises:
            UpstreamError: ``request_crashes_engine``.
        """
        now = self._clock.monotonic()
        if self._suspects.empty(now):
            return
        rest = self._suspects.refused_for(body_key(body), now)
        if rest is not None:
            raise UpstreamError(
                "request_crashes_engine",
                f"The engine of {model} crashed twice while it worked on exactly this request, so it is refused for "
                f"another {format_duration(rest)}. Change the request, or see the model's last_exit in the status.",
                model=model,
                refused_seconds=round(rest, 1),
            )

    def turn_of(self, model: str, body: bytes) -> Turn | None:
        """The turn that a suspected body must take before it asks for a lease; None: it need not."""
        now = self._clock.monotonic()
        if self._suspects.empty(now) or not self._suspects.suspected(body_key(body), now):
            return None
        return Turn(self._locks.setdefault(model, anyio.Lock()), self._max_wait())

    def answered(self, model: str, body: bytes) -> None:
        """An engine answered this body."""
        if not self._suspects.empty(self._clock.monotonic()):
            self._suspects.answered(model, body_key(body))
