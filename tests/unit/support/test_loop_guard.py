"""The guard against code that blocks the event loop, and against forgotten tasks."""

from __future__ import annotations

import pytest

from tests.support.guarded_run import GuardedRun, guarded_run

_CASES = """
import asyncio, gc, time
import anyio, pytest
from conftest import FORKS

KEPT = []
HEAP = [[] for _ in range(500_000)]


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


async def test_quiet():
    await anyio.sleep(0.05)


async def test_blocks():
    await anyio.sleep(0)
    compute(1.0)
    await anyio.sleep(0)


async def test_blocks_at_its_end():
    await anyio.sleep(0.02)
    compute(1.0)


async def test_blocks_in_a_callback():
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.call_soon(lambda: (compute(1.0), done.set()))
    await done.wait()


async def test_blocks_in_a_task():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_a_task)


async def in_a_task():
    compute(1.0)


async def test_computes_in_small_steps():
    for _ in range(40):
        compute(0.01)
        await anyio.sleep(0)


async def test_computes_in_a_thread():
    await anyio.to_thread.run_sync(compute, 0.4)


async def test_collects_garbage():
    start = time.thread_time()
    while time.thread_time() - start < 0.4:
        gc.collect()


async def test_forks():
    before = len(FORKS)
    await anyio.run_process(["true"])
    assert len(FORKS) == before + 1


async def test_waits_on_the_wall():
    time.sleep(0.4)


@pytest.mark.blocks_loop("measures a computation")
async def test_may_block():
    compute(0.4)


@pytest.mark.blocks_loop
async def test_gives_no_reason():
    pass


def test_without_a_loop():
    compute(0.4)


async def test_forgets_a_task():
    KEPT.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))


async def test_task_that_is_just_ending():
    KEPT.append(asyncio.create_task(asyncio.sleep(0.2)))


async def test_fails_for_its_own_reason():
    KEPT.append(asyncio.create_task(asyncio.sleep(60)))
    assert 1 == 2, "its own reason"
"""

# Stands for the kernel, which copies the page tables of a large process. Hooks that were set later run outside of it.
_SLOW_FORK = """
import os, time

FORKS = []


def copy_much():
    end = time.thread_time() + 0.4
    while time.thread_time() < end:
        sum(range(1000))
    FORKS.append(end)


os.register_at_fork(before=copy_much)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> GuardedRun:
    """All cases in one run."""
    return guarded_run(tmp_path_factory.mktemp("loop"), _CASES, _SLOW_FORK)


@pytest.mark.parametrize(
    "name",
    [
        "test_quiet",
        "test_computes_in_small_steps",
        "test_computes_in_a_thread",
        "test_collects_garbage",
        "test_forks",
        "test_waits_on_the_wall",
        "test_may_block",
        "test_without_a_loop",
        "test_task_that_is_just_ending",
    ],
)
def test_a_loop_that_turns_passes(run: GuardedRun, name: str) -> None:
    """Small steps, other threads, mere waiting and a marked test are no blocking."""
    assert run.outcomes[name] == ["PASSED"], run.output


@pytest.mark.parametrize(
    "name", ["test_blocks", "test_blocks_at_its_end", "test_blocks_in_a_callback", "test_blocks_in_a_task"]
)
def test_a_blocked_loop_fails(run: GuardedRun, name: str) -> None:
    """Wherever in the loop the CPU went, the test fails and the message shows the time and the place."""
    assert run.outcomes[name] == ["FAILED"], run.output
    assert "the event loop stood still for" in run.messages[name]
    assert "compute" in run.section(name), run.output


def test_a_forgotten_task_fails_and_is_named(run: GuardedRun) -> None:
    """A task that still runs when its test has ended fails that test."""
    assert run.outcomes["test_forgets_a_task"] == ["FAILED"], run.output
    assert "task forgotten" in run.messages["test_forgets_a_task"]


def test_the_marker_needs_a_reason(run: GuardedRun) -> None:
    """An opt-out without a reason is refused."""
    assert run.outcomes["test_gives_no_reason"] == ["FAILED"], run.output
    assert "needs a reason" in run.messages["test_gives_no_reason"]


def test_a_failing_test_keeps_its_own_reason(run: GuardedRun) -> None:
    """The guard never hides why a test failed."""
    assert run.outcomes["test_fails_for_its_own_reason"] == ["FAILED"], run.output
    assert "its own reason" in run.messages["test_fails_for_its_own_reason"]
