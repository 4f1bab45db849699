"""How long an engine may be silent within a request, and what happens when it is for longer.

Before its first content an engine reads the prompt: it may be silent for a time that grows with the prompt, and each of
its progress reports lets that time begin anew. After it, the time between two pieces counts.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType

from supervisor.errors import UpstreamError
from supervisor.gateway.ports import Lease
from supervisor.gateway.request_limits import RequestLimits
from supervisor.units import format_duration


class Watchdog:
    """Watches one request by one timer; what is heard costs it no more than two stores.

    Attributes:
        since: monotonic second since which the engine is waited for; infinite while the client is.
        content: the first content has come.
    """

    __slots__ = ("_asked", "_cut", "_lease", "_limits", "_timer", "_tokens", "content", "since")

    def __init__(self, lease: Lease, limits: RequestLimits, tokens: int, cut: asyncio.Timeout) -> None:
        self.since = monotonic()
        self.content = False
        self._lease = lease
        self._limits = limits
        self._tokens = tokens
        self._cut = cut
        self._asked = False
        self._timer = asyncio.get_running_loop().call_later(self.limit, self._look)

    @property
    def limit(self) -> float:
        """Seconds of silence that are allowed now."""
        return self._limits.idle if self.content else self._limits.first(self._tokens)

    def heard(self) -> None:
        """Something came from the engine."""
        now = monotonic()
        self.since = now
        self._lease.progress(now)

    def stop(self) -> None:
        """The request is over."""
        self._timer.cancel()

    def error(self) -> UpstreamError:
        """Why the request is given up, with the settings that say so."""
        limits = self._limits
        if self.content:
            why = f"within its answer; supervision.request.idle is {format_duration(limits.idle)}"
        else:
            why = (
                f"before its first content, as long as supervision.request allows for about {self._tokens} tokens "
                f"(first_base {format_duration(limits.first_base)}, first_per_1k_tokens "
                f"{format_duration(limits.first_per_1k_tokens)}, first_cap {format_duration(limits.first_cap)})"
            )
        return UpstreamError(
            "upstream_timeout", f"The engine was silent for {format_duration(self.limit)} {why}. It was given up."
        )

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        silent = monotonic() - self.since
        rest = self.limit - silent
        if rest > 0:
            self._asked = False
            self._timer = loop.call_later(min(rest, self.limit), self._look)
        elif not self._asked:
            # First the engine is looked at: one that hangs is replaced, and then this request may be asked again.
            self._asked = True
            self._lease.overdue(self.limit)
            self._timer = loop.call_later(self._limits.verdict, self._look)
        else:
            self._cut.reschedule(loop.time())


class watched:  # noqa: N801  used as the function that a context manager often is
    """The block in which an engine is waited for; a class and no generator: there is one a request.

    Leaving raises ``UpstreamError``: ``upstream_timeout``: it was silent for too long.
    """

    __slots__ = ("_cut", "_lease", "_limits", "_tokens", "_watchdog")

    def __init__(self, lease: Lease, limits: RequestLimits, tokens: int) -> None:
        self._lease = lease
        self._limits = limits
        self._tokens = tokens
        self._cut = asyncio.timeout(None)
        self._watchdog: Watchdog | None = None

    async def __aenter__(self) -> Watchdog:
        await self._cut.__aenter__()
        self._watchdog = Watchdog(self._lease, self._limits, self._tokens, self._cut)
        return self._watchdog

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watchdog = self._watchdog
        assert watchdog is not None
        watchdog.stop()
        try:
            await self._cut.__aexit__(kind, error, trace)
        except TimeoutError as cut:
            raise watchdog.error() from cut
        if isinstance(error, TimeoutError):
            raise watchdog.error() from error
