"""What is known of one HTTP request from its arrival to its end."""

from __future__ import annotations

import re
import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from supervisor.clock import Clock
from supervisor.errors import SupervisorError
from supervisor.events import EventBus, InternalError, RequestFinished
from supervisor.gateway.caller import Caller
from supervisor.gateway.errors import internal_error
from supervisor.gateway.measure import NOTHING, Measure
from supervisor.gateway.ports import Lease
from supervisor.gateway.standing import Standing
from supervisor.gateway.token_meter import TokenMeter

# As nginx logs it: the client closed before there was an answer. Never sent.
CLIENT_LEFT_STATUS = 499

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds for a slot, seconds for the engine to start, and whether this request made it start."""

    queue_seconds: float
    load_seconds: float
    load_owner: bool


class Exchange:
    """Grows while the request is served; becomes the ``RequestFinished`` event.

    Attributes:
        caller: who asks; until that is known, just the address.
        headers: sent with the answer.
        waits: what it waited for, once it is leased.
        model: id of the model, once resolved.
        outcome: as in ``RequestFinished``.
        standing: where it queues.
        stopped_by: the stop string that ended its answer; None: none, or the engine did not say.
    """

    __slots__ = (
        "_bus",
        "_clock",
        "_first_byte",
        "_measure",
        "_started",
        "caller",
        "headers",
        "model",
        "outcome",
        "request_id",
        "standing",
        "stopped_by",
        "waits",
    )

    def __init__(self, request_id: str, caller: Caller, clock: Clock, bus: EventBus) -> None:
        self._clock = clock
        self._bus = bus
        self._started = clock.monotonic()
        self._first_byte: float | None = None
        self._measure: Measure | None = None
        self.request_id = request_id
        self.caller = caller
        self.standing = Standing(caller.name, weight=caller.weight)
        self.headers = {"x-request-id": request_id, "Server": "enginehouse"}
        self.model: str | None = None
        self.waits: Waits | None = None
        self.stopped_by: str | None = None
        self.outcome = "ok"

    def leased(self, lease: Lease) -> None:
        """Tell the client which instance serves it, and what the wait was for."""
        self.waits = Waits(lease.queue_seconds, lease.load_seconds, lease.load_owner)
        launch = lease.launch
        self.headers["x-enginehouse-instance"] = launch.instance_id
        self.headers["x-enginehouse-queue-ms"] = str(round(lease.queue_seconds * 1000))
        self.headers["x-enginehouse-load-ms"] = str(round(lease.load_seconds * 1000))
        if lease.load_seconds > 0:
            self.headers["x-enginehouse-load-owner"] = "self" if lease.load_owner else "other"
        if launch.plan.degraded:
            self.headers["x-enginehouse-degraded"] = ",".join(launch.plan.degraded)

    def measure(self, model: str, meter: TokenMeter) -> Measure:
        """A new measure of what an engine writes for this request; the last one is told."""
        self._measure = Measure(model, self._started, self._clock, meter)
        return self._measure

    @property
    def has_content(self) -> bool:
        """Whether a byte of the answer itself was sent."""
        return self._first_byte is not None

    def content_sent(self) -> None:
        """The first byte of the answer itself leaves now, unless it has already."""
        if self._first_byte is None:
            self._first_byte = self._clock.monotonic()

    def failed(self, error: Exception) -> SupervisorError:
        """The request ends with this error; the answer is what its client may know of it."""
        self.outcome = "error"
        if isinstance(error, SupervisorError):
            if error.code == "upstream_died":
                self.outcome = "upstream_died"
            return error
        trace = "".join(traceback.format_exception(error))
        self._bus.publish(InternalError(f"request {self.request_id}", f"{type(error).__name__}: {error}", trace))
        return internal_error(self.request_id)

    def client_left(self) -> None:
        """The request ends because nobody waits for its answer."""
        self.outcome = "client_left"

    def finished(self, request: web.Request, status: int) -> Callable[[], None]:
        """It ends now; the answer publishes the event that tells the whole of it."""
        ended = self._clock.monotonic()
        return partial(self._tell, request, status, ended)

    def _tell(self, request: web.Request, status: int, ended: float) -> None:
        first = None if self._first_byte is None else self._first_byte - self._started
        worked = (None if self._measure is None else self._measure.result()) or NOTHING
        self._bus.publish(
            RequestFinished(
                request_id=self.request_id,
                method=request.method,
                path=request.path,
                model=self.model,
                caller=self.caller.name,
                status=status,
                outcome=self.outcome,
                seconds=ended - self._started,
                first_byte_seconds=first,
                prompt_tokens=worked.prompt_tokens,
                cached_tokens=worked.cached_tokens,
                generated_tokens=worked.generated_tokens,
                first_token_seconds=worked.first_token_seconds,
                token_seconds=worked.token_seconds,
            )
        )


_EXCHANGE = web.RequestKey("exchange", Exchange)


def begin(request: web.Request, caller: Caller, clock: Clock, bus: EventBus) -> Exchange:
    """A new exchange, tied to its request; the client's request id is kept if it is sane."""
    asked = request.headers.get("x-request-id", "")
    request_id = asked if _SANE_ID.fullmatch(asked) else f"req-{secrets.token_hex(12)}"
    exchange = Exchange(request_id, caller, clock, bus)
    request[_EXCHANGE] = exchange
    return exchange


def exchange_of(request: web.Request) -> Exchange:
    """The exchange that ``begin`` tied to this request."""
    return request[_EXCHANGE]
