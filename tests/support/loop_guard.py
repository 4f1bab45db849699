"""Fails an async test that leaves a task behind, or that keeps the event loop from turning.

A test plugin. Blocking is measured by the CPU time of the loop's thread between two turns of the loop, not by the
wall clock, so that a busy machine fails no test; what waits without computing (a sleep, a slow disk) is not seen.
Garbage collections and forks are not counted: their length is that of the whole suite's heap, which the kernel copies
the page tables of, and not of what the daemon would have in memory.
It works on asyncio and uvloop alike: a timer of the loop itself beats, and reads the thread's clock at each beat.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from types import FrameType
from typing import Any

import pytest

from tests.support.orphans import OrphanReaper
from tests.support.patience import GRACE_SECONDS
from tests.support.workers import only_hands_out

MARKER = "blocks_loop"
# Long enough for the many small things of a turn on a slow machine, short enough to catch the hash of a file.
LIMIT_SECONDS = 0.15
_BEAT_SECONDS = 0.01
_WATCH_SECONDS = 0.05


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and start the thread that looks over the tests' shoulders."""
    config.addinivalue_line("markers", f"{MARKER}(reason): this test may keep the event loop busy")
    if only_hands_out(config):
        return
    config.stash[_WATCHER] = watcher = _Watcher()
    # Hooks at forks can't be taken away again: they are set once, and ask for the pulse of the moment.
    os.register_at_fork(before=watcher.fork_begins, after_in_parent=watcher.fork_ended)
    watcher.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the thread."""
    if watcher := config.stash.get(_WATCHER, None):
        watcher.stop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Put the guard around an async test; it runs inside the test's own loop."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is not None and not marker.args:
        raise pytest.UsageError(f"@pytest.mark.{MARKER} needs a reason")
    limit = LIMIT_SECONDS if marker is None else None
    watcher = pyfuncitem.config.stash[_WATCHER]
    test = pyfuncitem.obj
    owner = getattr(test, "hypothesis", None)
    inner = owner.inner_test if owner is not None else test
    if not iscoroutinefunction(inner):
        return (yield)
    guarded = _guarded(inner, limit, watcher)
    if owner is not None:
        owner.inner_test = guarded
    else:
        pyfuncitem.obj = guarded
    try:
        return (yield)
    finally:
        if owner is not None:
            owner.inner_test = inner
        else:
            pyfuncitem.obj = test


def _guarded(test: Callable[..., Awaitable[None]], limit: float | None, watcher: _Watcher) -> Callable[..., Any]:
    @functools.wraps(test)
    async def run(**arguments: Any) -> None:
        before = asyncio.all_tasks()
        async with _beating(limit, watcher):
            await test(**arguments)
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        if left:
            await asyncio.wait(left, timeout=GRACE_SECONDS)
        left = [task for task in left if not task.done()]
        for task in left:
            task.cancel()
        if left:
            pytest.fail("the test left behind: " + "; ".join(f"task {_describe(task)}" for task in left), pytrace=False)

    return run


@asynccontextmanager
async def _beating(limit: float | None, watcher: _Watcher) -> AsyncIterator[None]:
    if limit is None:
        yield
        return
    pulse = _Pulse(asyncio.get_running_loop(), limit)
    watcher.watch(pulse)
    try:
        yield
        # What blocked last is seen by the beat after it.
        await asyncio.sleep(0)
        pulse.beat()
    finally:
        pulse.stop()
        watcher.watch(None)
    if pulse.worst > limit:
        said = f"the event loop stood still for {pulse.worst * 1000:.0f} ms of CPU time (limit {limit * 1000:.0f} ms)"
        where = pulse.culprit or "  (too short for a look at where)"
        pytest.fail(f"{said}; seen at:\n{where}", pytrace=False)


class _Pulse:
    """The loop's heart: CPU seconds of its thread between two beats, and the worst of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        self.limit = limit
        self.thread = threading.get_ident()
        self.worst = 0.0
        self.culprit = ""
        self.beats = 0
        self.last = time.thread_time()
        self._uncounted_since = 0.0
        gc.callbacks.append(self._collected)
        self._loop = loop
        self._timer = loop.call_later(_BEAT_SECONDS, self._turn)

    def beat(self) -> None:
        """Read the thread's clock; called in the loop's thread only."""
        now = time.thread_time()
        self.worst = max(self.worst, now - self.last)
        self.last = now
        self.beats += 1

    def stop(self) -> None:
        """No more beats."""
        self._timer.cancel()
        gc.callbacks.remove(self._collected)

    def uncounted(self, *, begins: bool) -> None:
        """Take what is done between two calls out of the count, if it is done in the loop's thread."""
        if threading.get_ident() != self.thread:
            return
        if begins:
            self._uncounted_since = time.thread_time()
        else:
            self.last += time.thread_time() - self._uncounted_since

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        self.uncounted(begins=phase == "start")

    def _turn(self) -> None:
        self.beat()
        self._timer = self._loop.call_later(_BEAT_SECONDS, self._turn)


class _Watcher(threading.Thread):
    """Looks every now and then: at what a standing loop is doing, and for orphans to reap."""

    def __init__(self) -> None:
        super().__init__(name="test watcher", daemon=True)
        self._pulse: _Pulse | None = None
        self._ended = threading.Event()
        self._orphans = OrphanReaper()

    def watch(self, pulse: _Pulse | None) -> None:
        """The loop to look at, or None between tests."""
        self._pulse = pulse

    def fork_begins(self) -> None:
        """Called in the thread that forks, before it does."""
        if (pulse := self._pulse) is not None:
            pulse.uncounted(begins=True)

    def fork_ended(self) -> None:
        """Called in the parent after the fork."""
        if (pulse := self._pulse) is not None:
            pulse.uncounted(begins=False)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Look until told to stop."""
        told: tuple[_Pulse | None, int] = (None, -1)
        while not self._ended.wait(_WATCH_SECONDS):
            pulse = self._pulse
            # Once for each time it stands: a later look may find it where it has just begun to go on.
            if pulse is not None and (stands := (pulse, pulse.beats)) != told:
                frame = sys._current_frames().get(pulse.thread)
                if _cpu_seconds(pulse.thread) - pulse.last > pulse.limit and pulse.beats == stands[1]:
                    pulse.culprit = _describe_frame(frame)
                    told = stands
            self._orphans.look()


_WATCHER = pytest.StashKey[_Watcher]()


def _cpu_seconds(thread: int) -> float:
    """CPU seconds of another thread; 0 where the system can't say."""
    if sys.platform == "darwin":
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _describe_frame(frame: FrameType | None) -> str:
    return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""


def _describe(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()} ({task.get_coro()})"
