"""One picture on one engine: begun as a job, followed by the log, fetched, or given up so that the engine is free.

The lease is held for as long as the engine computes, whoever has left: else the next picture would wait behind it, and
its memory be promised twice.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import aiohttp
import anyio
import anyio.to_thread
import orjson

from engines.pictures import JobReport, JobState, PictureAbilities, PictureEngine, PictureWish
from supervisor.errors import CallerError, SupervisorError, UpstreamError
from supervisor.gateway.pictures.host import PictureHost, PictureLaunch
from supervisor.gateway.pictures.progress import Progress, Tracker
from supervisor.gateway.ports import Lease

# Between two looks at the log, and between two questions for a job's state: a question takes a core from an engine that
# computes on all of them. When the log has said that it is over, its encoding is all that is waited for.
_LOOK_SECONDS = 0.1
_ASK_SECONDS = 0.5
_NEARLY_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.03)
_CALL_SECONDS = 30.0
# An engine that is told to stop is gone in hundredths of a second; its start is what costs.
_STOP_SECONDS = 0.05
_GONE_SECONDS = 20.0
_AT_WORK = frozenset({JobState.QUEUED, JobState.RUNNING})


@dataclass(slots=True)
class Order:
    """What is to be drawn, and what is known of it meanwhile.

    Attributes:
        cancelled: set by whoever wants it no more.
        changed: told of each state.
    """

    model: str
    wish: PictureWish
    abilities: PictureAbilities
    changed: Callable[[Progress], None]
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    why_cancelled: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Pictures in base64; ``applied``: tensors of LoRAs that were applied, and all there were."""

    images: tuple[str, ...]
    seconds: float
    applied: tuple[int, int] | None


class OutOfMemoryError(Exception):
    """The engine could not get what the picture needs; ``asked_bytes`` is the piece that was refused."""

    def __init__(self, asked_bytes: int | None) -> None:
        super().__init__("out of memory")
        self.asked_bytes = asked_bytes


class EngineGoneError(Exception):
    """The engine ended before the picture was done."""


def cancelled_error(why: str) -> CallerError:
    """Of a picture that somebody has cancelled."""
    return CallerError("image_generation_cancelled", f"The picture was cancelled: {why or 'as asked'}.")


class Drawing:
    """Draws on leased engines; remembers how long decoding takes, by model and pixel."""

    def __init__(self, host: PictureHost, silence: Callable[[], float]) -> None:
        """``silence``: seconds without a sign of progress after which an engine is given up."""
        self._host = host
        self._silence = silence
        self._decoding: dict[str, float] = {}

    async def draw(self, order: Order, engine: PictureEngine, lease: Lease) -> Drawn:
        """The pictures.

        Raises:
            CallerError: ``image_generation_cancelled``.
            OutOfMemoryError: it did not fit.
            EngineGoneError: the engine ended.
            UpstreamError: it refused the job, failed, or says what can't be understood.
        """
        launch = cast("PictureLaunch", lease.launch)
        tracker = Tracker(engine.read_sign, order.changed)
        launch.listeners.append(tracker.line)
        began = time.monotonic()
        try:
            report = await self._follow(order, engine, lease, tracker)
        except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:  # RuntimeError: the session is closed
            if await lease.broke(_GONE_SECONDS):
                raise EngineGoneError from error
            raise UpstreamError("upstream_unreachable", f"The engine of {order.model} does not answer.") from error
        finally:
            launch.listeners.remove(tracker.line)
        if report.state is JobState.DONE and report.images:
            pixels = order.wish.width * order.wish.height * order.wish.count
            if (decoded := tracker.decode_seconds) is not None:
                self._decoding[order.model] = decoded / pixels
            lease.done()
            return Drawn(report.images, time.monotonic() - began, tracker.applied)
        lease.done()
        if tracker.lacked or (report.error or "").endswith("no results"):
            raise OutOfMemoryError(tracker.asked_bytes)
        said = report.error or f"the job is {report.state.value}"
        raise UpstreamError("image_generation_failed", f"The engine of {order.model} made no picture: {said}.")

    async def _follow(self, order: Order, engine: PictureEngine, lease: Lease, tracker: Tracker) -> JobReport:
        launch = cast("PictureLaunch", lease.launch)
        job = await self._begin(order, engine, launch)
        ask_at = time.monotonic() + _ASK_SECONDS
        nearly = itertools.chain(_NEARLY_SECONDS, itertools.repeat(_NEARLY_SECONDS[-1]))
        try:
            while True:
                if order.cancelled.is_set():
                    await self._give_up(order, engine, lease, tracker, job)
                    raise cancelled_error(order.why_cancelled)
                tracker.line(launch.unfinished())
                if tracker.over or time.monotonic() >= ask_at:
                    report = await self._ask(order, engine, launch, job)
                    lease.progress(time.monotonic())
                    if report.state not in _AT_WORK:
                        return report
                    ask_at = time.monotonic() + _ASK_SECONDS
                if tracker.silent > self._silence():
                    await self._silenced(order, lease, tracker)
                with anyio.move_on_after(next(nearly) if tracker.over else _LOOK_SECONDS) as pause:
                    # Who waits for a small picture would else wait for half a pause more than the engine takes.
                    tracker.at_end = pause.cancel
                    await order.cancelled.wait()
                tracker.at_end = None
        except asyncio.CancelledError:
            # The daemon stops: nothing that is awaited here would still be done.
            lease.abandon()
            raise

    async def _silenced(self, order: Order, lease: Lease, tracker: Tracker) -> None:
        """It computes for ever, as it seems: it is stopped.

        Raises:
            UpstreamError: ``upstream_timeout``.
        """
        why = f"it told of no progress for {tracker.silent:.0f} s within a picture (pictures.silence)"
        self._host.stop(order.model, why)
        await lease.broke(_GONE_SECONDS)
        raise UpstreamError("upstream_timeout", f"The engine of {order.model} was given up: {why}.")

    async def _begin(self, order: Order, engine: PictureEngine, launch: PictureLaunch) -> str:
        path, body = engine.submit(order.wish, order.abilities)
        data = await anyio.to_thread.run_sync(orjson.dumps, body)
        status, answer = await _call(launch, path, data)
        try:
            return engine.read_submitted(status, answer)
        except ValueError as error:
            raise _refused(order, str(error)) from error

    async def _ask(self, order: Order, engine: PictureEngine, launch: PictureLaunch, job: str) -> JobReport:
        status, answer = await _call(launch, engine.status_path(job))
        try:
            if len(answer) > 2**20:
                return await anyio.to_thread.run_sync(engine.read_job, status, answer)
            return engine.read_job(status, answer)
        except ValueError as error:
            raise UpstreamError(
                "image_generation_failed", f"The engine of {order.model} can't be understood: {error}."
            ) from error

    async def _give_up(self, order: Order, engine: PictureEngine, lease: Lease, tracker: Tracker, job: str) -> None:
        """Return when the engine computes for it no more: at once where it had not begun, else as is sooner."""
        launch = cast("PictureLaunch", lease.launch)
        status, _ = await _call(launch, engine.cancel_path(job), b"")
        if status == 200:  # noqa: PLR2004  it was still queued, or is done already
            lease.done()
            return
        pixels = order.wish.width * order.wish.height * order.wish.count
        decode = self._decoding.get(order.model)
        rest = tracker.rest(None if decode is None else decode * pixels)
        again = (self._host.load_seconds(order.model) or 0.0) + _STOP_SECONDS
        if rest is not None and rest <= again:
            ended = (await self._ask(order, engine, launch, job)).state not in _AT_WORK
            while not ended:
                await anyio.sleep(_LOOK_SECONDS)
                ended = (await self._ask(order, engine, launch, job)).state not in _AT_WORK
            lease.done()
            return
        left = "an unknown time" if rest is None else f"{rest:.1f} s"
        self._host.stop(
            order.model, f"a picture was cancelled: {left} were left of it, a new start takes {again:.1f} s"
        )
        await lease.broke(_GONE_SECONDS)


def _refused(order: Order, said: str) -> SupervisorError:
    """The engine's own refusal of a job: what was checked here it still would not take."""
    return CallerError(
        "image_undecodable" if order.wish.sources else "invalid_request",
        f"The engine of {order.model} refused the request: {said}. Look at the source pictures, if there are any.",
    )


async def _call(launch: PictureLaunch, path: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of an answer; a POST where there is data, be it empty."""
    headers = {**launch.headers, "Content-Type": "application/json"}
    url = launch.base_url + path
    async with asyncio.timeout(_CALL_SECONDS), launch.calls:
        if data is None:
            async with launch.session.get(url, headers=headers) as answer:
                return answer.status, await answer.read()
        async with launch.session.post(url, data=data, headers=headers) as answer:
            return answer.status, await answer.read()
