"""The event stream: replay, live, heartbeat, overflow, and nothing left behind."""

import gc
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel

from supervisor.events import EventBus, ModelBroken
from supervisor.telemetry.event_stream import EventStream
from tests.fakes.clock import HandClock


def _bus(published: int = 0, keep: int = 2048) -> EventBus:
    bus = EventBus(HandClock(12.5), keep)
    for number in range(1, published + 1):
        bus.publish(_broken(number))
    return bus


def _broken(number: int) -> ModelBroken:
    return ModelBroken(f"m{number}", None, "cut short")


async def _take(frames: AsyncGenerator[bytes, None], count: int) -> list[bytes]:
    with anyio.fail_after(5):
        return [await anext(frames) for _ in range(count)]


def _ids(frames: list[bytes]) -> list[int]:
    return [int(frame.split(b"\n")[0].removeprefix(b"id: ")) for frame in frames]


def _data(frame: bytes) -> dict[str, Any]:
    lines = [line for line in frame.decode().split("\n") if line.startswith("data: ")]
    document = json.loads(lines[0].removeprefix("data: "))
    assert isinstance(document, dict)
    return document


async def test_a_frame_has_the_records_number_name_and_facts() -> None:
    """One frame is one record: its id can be given back as Last-Event-ID."""
    async with aclosing(EventStream(_bus(1)).frames(0)) as frames:
        (frame,) = await _take(frames, 1)
    assert frame == (
        b"id: 1\nevent: model_broken\n"
        b'data: {"at":12.5,"level":"warning","model":"m1","path":null,"reason":"cut short"}\n\n'
    )


async def test_kept_records_after_the_last_id_come_first_then_live_ones() -> None:
    """Nothing is lost or doubled between replay and live."""
    bus = _bus(5)
    async with aclosing(EventStream(bus).frames(3)) as frames:
        first = await _take(frames, 1)
        bus.publish(_broken(6))
        rest = await _take(frames, 2)
    assert _ids(first + rest) == [4, 5, 6]


async def test_without_a_last_id_only_new_records_come() -> None:
    """A reader that asks for no replay sees what happens from now on."""
    bus = _bus(5)
    async with aclosing(EventStream(bus).frames(None)) as frames, anyio.create_task_group() as tasks:

        async def publish_once_listening() -> None:
            while not bus._listeners:
                await anyio.lowlevel.checkpoint()
            bus.publish(_broken(6))

        tasks.start_soon(publish_once_listening)
        assert _ids(await _take(frames, 1)) == [6]


async def test_an_id_from_an_earlier_run_replays_everything() -> None:
    """Numbers start again with the daemon: a reader that comes back with a great one misses nothing."""
    async with aclosing(EventStream(_bus(2)).frames(900)) as frames:
        assert _ids(await _take(frames, 2)) == [1, 2]


async def test_forgotten_records_are_said_to_be_missing() -> None:
    """A gap between the last id and what is kept is not silent."""
    async with aclosing(EventStream(_bus(10, keep=3)).frames(2)) as frames:
        missed, *rest = await _take(frames, 4)
    assert missed.startswith(b"event: missed\n")
    assert _data(missed) == {"after": 2, "before": 8}
    assert _ids(rest) == [8, 9, 10]


async def test_a_quiet_line_carries_a_comment() -> None:
    """Without events a heartbeat keeps the connection visible to both ends, again and again."""
    async with aclosing(EventStream(_bus(), heartbeat_seconds=0.01).frames(None)) as frames:
        assert await _take(frames, 2) == [b": heartbeat\n\n"] * 2


async def test_a_slow_reader_is_dropped_with_a_last_word() -> None:
    """What waits is bounded: the reader gets that, an overflow frame, and the end; others go on."""
    bus = _bus(1)
    stream = EventStream(bus, max_pending=3)
    async with aclosing(stream.frames(0)) as slow, aclosing(stream.frames(0)) as quick:
        await _take(slow, 1)
        await _take(quick, 1)
        for number in range(2, 7):
            bus.publish(_broken(number))
            assert _ids(await _take(quick, 1)) == [number]
        assert len(bus._listeners) == 1
        *rest, last = [frame async for frame in slow]
        assert _ids(rest) == [2, 3, 4]
        assert last.startswith(b"event: overflow\n")
        assert _data(last)["pending"] == 3


async def test_nothing_is_left_when_the_reader_is_cancelled_or_closes() -> None:
    """Neither a cancelled wait nor a closed generator keeps its listener."""
    bus = _bus(1)
    stream = EventStream(bus)
    async with aclosing(stream.frames(0)) as frames:
        await _take(frames, 1)
        with anyio.move_on_after(0.01):
            await anext(frames)
        assert bus._listeners == []
    async with aclosing(stream.frames(0)) as frames:
        await _take(frames, 1)
        assert len(bus._listeners) == 1
    assert bus._listeners == []


async def test_a_forgotten_generator_ends_its_subscription() -> None:
    """A reader whose frames were dropped unclosed holds at most its bound, and then nothing."""
    bus = _bus(1)
    frames = EventStream(bus, max_pending=2).frames(0)
    await _take(frames, 1)
    for number in range(2, 6):
        bus.publish(_broken(number))
    assert bus._listeners == []
    await frames.aclose()
    del frames
    gc.collect()


async def test_facts_are_cleaned_before_they_leave() -> None:
    """An engine's log line that shows a key does not show it to a stream's reader."""
    stream = EventStream(_bus(1), clean=lambda facts: {**facts, "reason": "***"})
    async with aclosing(stream.frames(0)) as frames:
        assert _data((await _take(frames, 1))[0])["reason"] == "***"
