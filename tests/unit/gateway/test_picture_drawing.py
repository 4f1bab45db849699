"""How far a picture is, and how one is given up: by the measured time of a step against that of a new start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import orjson
import pytest

from engines.pictures import PictureWish
from engines.sd_cpp.drawing import SdCppPictures
from supervisor.errors import CallerError, UpstreamError
from supervisor.gateway.pictures.drawing import Drawing, EngineGoneError, Order, OutOfMemoryError
from supervisor.gateway.pictures.progress import Progress, Tracker
from supervisor.gateway.ports import Lease
from tests.unit.sd_cpp.test_jobs import ABILITIES, WISH

_BEGUN = [
    "[INFO ] x.cpp:1 - generate_image 64x64",
    "  | 1/1 - 9.00it/s",  # the bar of something else
    "[INFO ] x.cpp:1 - get_learned_condition completed, taking 0.22s",
    "[INFO ] x.cpp:1 - generating image: 1/1 - seed 42",
]


def _step(number: int, steps: int, seconds: float) -> str:
    return f"  |==>  | {number}/{steps} - {seconds:.2f}s/it"


def test_states_come_from_the_log() -> None:
    """Each step once, however often its bar is read; what the bar is of is known from the lines before."""
    told: list[Progress] = []
    tracker = Tracker(SdCppPictures().read_sign, told.append)
    for line in (
        *_BEGUN,
        _step(1, 3, 2),
        _step(1, 3, 2),
        _step(2, 3, 4),
        "x sampling completed, taking 1s",
        _step(1, 9, 1),
    ):
        tracker.line(line)
    assert [(state.state, state.step) for state in told] == [("drawing", 1), ("drawing", 2), ("decoding", 3)]
    assert told[1].document() == {
        "state": "drawing", "step": 2, "steps": 3, "image": 1, "seconds_per_step": 3.0, "eta_seconds": 3.0,
    }  # fmt: skip


def test_the_rest_is_steps_and_decoding() -> None:
    """Unknown while either is."""
    tracker = Tracker(SdCppPictures().read_sign, lambda _: None)
    assert tracker.rest(1.0) is None
    for line in (*_BEGUN, _step(2, 10, 0.5)):
        tracker.line(line)
    assert (tracker.rest(None), tracker.rest(1.0)) == (None, 5.0)


class _Engine:
    """A launch whose job runs until it is stopped, or for so many questions."""

    def __init__(self, lines: list[str], questions: int, end: dict[str, Any], submitted: int = 202) -> None:
        self.base_url = "http://engine"
        self.headers: dict[str, str] = {}
        self.listeners: list[Callable[[str], None]] = []
        self.unfinished = lambda: ""
        self.stopped = anyio.Event()
        self.left = questions
        self.asked: list[str] = []
        self._lines, self._end, self._submitted = lines, end, submitted

    @property
    def calls(self) -> AbstractAsyncContextManager[Any]:
        return suppress_nothing()

    @property
    def session(self) -> Any:
        return self

    def post(self, url: str, **_: Any) -> AbstractAsyncContextManager[Any]:
        if url.endswith("/cancel"):
            return self._answer(409, {"error": "can't be interrupted"})
        return self._answer(self._submitted, {"id": "job_1", "error": "invalid parameters"})

    def get(self, url: str, **_: Any) -> AbstractAsyncContextManager[Any]:
        if self.stopped.is_set():
            raise RuntimeError("the session is closed")
        self.asked.append(url)
        for line in self._lines:
            for listener in self.listeners:
                listener(line)
        self.left -= 1
        return self._answer(200, {"status": "generating"} if self.left > 0 else self._end)

    @asynccontextmanager
    async def _answer(self, status: int, document: dict[str, Any]) -> Any:
        async def read() -> bytes:
            return orjson.dumps(document)

        yield SimpleNamespace(status=status, read=read)


@asynccontextmanager
async def suppress_nothing() -> Any:
    """A gate that is open."""
    yield


class _Lease:
    def __init__(self, engine: _Engine) -> None:
        self.launch = engine
        self.ended = ""

    async def broke(self, _seconds: float) -> bool:
        return self.launch.stopped.is_set()

    def progress(self, _at: float) -> None:
        pass

    def done(self) -> None:
        self.ended = "done"


class _Host:
    def __init__(self, engine: _Engine, load: float | None) -> None:
        self.stops: list[str] = []
        self._engine, self._load = engine, load

    def load_seconds(self, _model: str) -> float | None:
        return self._load

    def stop(self, _model: str, why: str) -> None:
        self.stops.append(why)
        self._engine.stopped.set()


def _drawing(engine: _Engine, load: float | None = 1.0, silence: float = 60.0) -> tuple[Drawing, _Host, _Lease]:
    host = _Host(engine, load)
    return Drawing(cast("Any", host), lambda: silence), host, _Lease(engine)


def _order(wish: PictureWish = WISH) -> Order:
    return Order("m", wish, ABILITIES, lambda _: None)


_DONE = {"status": "completed", "result": {"images": [{"index": 0, "b64_json": "eA=="}]}}


async def test_a_picture_is_fetched() -> None:
    """The engine is asked until it is done, and the lease is told so."""
    engine = _Engine([*_BEGUN, "x generate_image completed in 1s"], 3, _DONE)
    drawing, _, lease = _drawing(engine)
    drawn = await drawing.draw(_order(), SdCppPictures(), cast("Lease", lease))
    assert (drawn.images, lease.ended, engine.listeners) == (("eA==",), "done", [])


async def test_a_picture_is_asked_for_as_soon_as_the_log_says_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits does not wait for the pause between two questions: of a small picture that was a tenth of its time."""
    monkeypatch.setattr("supervisor.gateway.pictures.drawing._LOOK_SECONDS", 3600.0)
    monkeypatch.setattr("supervisor.gateway.pictures.drawing._ASK_SECONDS", 0.0)
    engine = _Engine([], 2, _DONE)
    drawing, _, lease = _drawing(engine)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drawing.draw, _order(), SdCppPictures(), cast("Lease", lease))
            while not engine.asked:  # noqa: ASYNC110  the fake has no event for it
                await anyio.sleep(0.01)
            for listener in engine.listeners:
                listener("x generate_image completed in 1s")
    assert lease.ended == "done"


@pytest.mark.parametrize(("step_seconds", "stops"), [(10.0, 1), (0.01, 0)])
async def test_a_cancelled_picture_is_finished_where_that_is_sooner(step_seconds: float, stops: int) -> None:
    """Ten steps of ten seconds are not waited for; ten of a hundredth are, where a new start takes five."""
    engine = _Engine([*_BEGUN, _step(1, 10, step_seconds)], 4, _DONE)
    drawing, host, lease = _drawing(engine, load=5.0)
    drawing._decoding["m"] = 1e-6  # as learned from a picture before
    order = _order()
    order.why_cancelled = "as asked"
    async with anyio.create_task_group() as tasks:

        async def draw() -> None:
            with pytest.raises(CallerError) as caught:
                await drawing.draw(order, SdCppPictures(), cast("Lease", lease))
            assert caught.value.code == "image_generation_cancelled"

        tasks.start_soon(draw)
        while not engine.asked:  # noqa: ASYNC110  the fake has no event for it
            await anyio.sleep(0.01)
        order.cancelled.set()
    assert len(host.stops) == stops
    assert lease.ended == ("" if stops else "done")


async def test_what_does_not_fit_what_is_refused_and_who_dies_are_told_apart() -> None:
    """Each leads to something else: fewer bytes, the client's fault, another try."""
    lacked = "[ERROR] ggml_aligned_malloc: insufficient memory (attempted to allocate 428.16 MB)"
    failed = {"status": "failed", "error": {"message": "generate_image returned no results"}}
    drawing, _, lease = _drawing(_Engine([lacked], 1, failed))
    with pytest.raises(OutOfMemoryError) as caught:
        await drawing.draw(_order(), SdCppPictures(), cast("Lease", lease))
    assert caught.value.asked_bytes == pytest.approx(428.16 * 2**20, rel=1e-6)
    drawing, _, lease = _drawing(_Engine([], 1, {}, submitted=400))
    with pytest.raises(CallerError, match="invalid parameters"):
        await drawing.draw(_order(), SdCppPictures(), cast("Lease", lease))
    dead = _Engine([], 1, {})
    dead.stopped.set()
    drawing, _, lease = _drawing(dead)
    with pytest.raises(EngineGoneError):
        await drawing.draw(_order(), SdCppPictures(), cast("Lease", lease))


async def test_an_engine_that_is_silent_is_given_up() -> None:
    """It answers, and draws nothing: its lease must not be held for ever."""
    engine = _Engine([], 1000, {})
    drawing, host, lease = _drawing(engine, silence=0.0)
    with pytest.raises(UpstreamError) as caught:
        await drawing.draw(_order(), SdCppPictures(), cast("Lease", lease))
    assert caught.value.code == "upstream_timeout"
    assert "pictures.silence" in host.stops[0]
