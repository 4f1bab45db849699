"""Threads: who decides, and what is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import ALONE, Beside
from supervisor.host.cpu import CpuBudget
from supervisor.planning.threads import (
    GPU_RESIDENT_THREADS,
    ThreadChoice,
    ThreadRequest,
    beside,
    choose_threads,
    threads_under_quota,
)
from tests.unit.planning.plans import plan_with

_UNKNOWN = CpuBudget(None, None, None, None, None, threads=1)
_FREE = CpuBudget(
    16, 16, None, None, 16.0, 16, physical_count=8, source="/sys/devices/system/cpu/online", why="online CPUs 0-15"
)
_QUOTA = CpuBudget(
    96, 96, None, 2.5, 2.5, 2, physical_count=48, source="/sys/fs/cgroup/cpu.max", why="quota 250000/100000"
)
_CPUSET = CpuBudget(
    96, 8, 8, 8.0, 8.0, 8, physical_count=4, source="/sys/fs/cgroup/cpuset.cpus.effective", why="cpuset 12-15,60-63"
)


def _choose(cpu: CpuBudget, **asked: Any) -> ThreadChoice:
    return choose_threads(ThreadRequest(cpu=cpu, **asked))


@pytest.mark.parametrize(
    ("cpu", "asked", "threads", "batch"),
    [
        # nothing asked
        (_FREE, {}, 8, 16),
        (_QUOTA, {}, 2, 2),
        (_CPUSET, {}, 4, 8),
        (_UNKNOWN, {}, None, None),
        # the model's own word, then the engine's defaults; one number is meant for both
        (_QUOTA, {"launch_threads": 6, "default_threads": 4}, 6, 6),
        (_QUOTA, {"default_threads": 4}, 4, 4),
        (_QUOTA, {"launch_threads": 1, "launch_threads_batch": 3, "default_threads_batch": 5}, 1, 3),
        (_QUOTA, {"launch_threads": 1, "default_threads_batch": 5}, 1, 5),
        (_FREE, {"launch_threads_batch": 12}, 8, 12),
        (_UNKNOWN, {"launch_threads": 3}, 3, 3),
        # extra arguments own the flag: only what was written down for the very number is said
        (_QUOTA, {"extra_args_own": True}, None, None),
        (_FREE, {"extra_args_own": True}, None, None),
        (_QUOTA, {"extra_args_own": True, "launch_threads": 6}, 6, None),
        (_QUOTA, {"extra_args_own": True, "default_threads_batch": 4}, None, 4),
        # all layers on a device: one or two, after what was written down and before the limits
        (_FREE, {"gpu_resident": True}, 2, 2),
        (_UNKNOWN, {"gpu_resident": True}, 2, 2),
        (_QUOTA, {"gpu_resident": True, "launch_threads": 6}, 6, 6),
        (_QUOTA, {"gpu_resident": True, "default_threads": 4}, 4, 4),
        (_FREE, {"gpu_resident": True, "extra_args_own": True}, None, None),
    ],
)
def test_the_first_who_has_a_word_decides(
    cpu: CpuBudget, asked: dict[str, Any], threads: int | None, batch: int | None
) -> None:
    """Settings, defaults, extra arguments, quota, cores: in this order."""
    choice = _choose(cpu, **asked)

    assert (choice.threads, choice.threads_batch) == (threads, batch)
    assert [(made.choice, made.value) for made in choice.choices] == [("threads", threads), ("threads_batch", batch)]


def test_the_reason_shows_the_arithmetic_and_the_file() -> None:
    """A quota of 2.5: two of 96, and why."""
    reason = _choose(_QUOTA).choices[0].reason

    assert reason == "2 of 96 CPUs (2.5, rounded down): quota 250000/100000 in /sys/fs/cgroup/cpu.max"


def test_the_reason_tells_cores_from_cpus() -> None:
    """Where siblings share cores, both counts are said."""
    generation, batch = _choose(_FREE).choices

    assert generation.reason.startswith("8 cores under 16 CPUs; 16 of 16 CPUs: online CPUs 0-15")
    assert batch.reason == "16 of 16 CPUs: online CPUs 0-15 in /sys/devices/system/cpu/online"


def test_a_topology_that_is_not_known_is_said() -> None:
    """All CPUs are used then, and the owner can see that it was for want of knowledge."""
    free = CpuBudget(4, None, None, None, 4.0, 4, source="/sys/devices/system/cpu/online", why="online CPUs 0-3")

    choice = _choose(free)

    assert choice.threads == 4
    assert "not known" in choice.choices[0].reason


def test_a_number_above_the_budget_stands_and_its_cost_is_said() -> None:
    """Never clamped: the owner's word, with what it costs under this quota."""
    choice = _choose(_QUOTA, launch_threads=16)

    assert (choice.threads, choice.over_budget) == (16, True)
    reason = choice.choices[0].reason
    assert "launch.threads says 16, 14 above the budget of 2 of 96 CPUs" in reason
    assert "stand still" in reason


def test_above_the_number_of_cpus_costs_turns_not_standstill() -> None:
    """Without a quota nothing is throttled; the words do not say so."""
    choice = _choose(_FREE, launch_threads=17)

    assert choice.over_budget
    assert "take turns" in choice.choices[0].reason


@pytest.mark.parametrize("asked", [{"launch_threads": 2}, {"extra_args_own": True}, {}])
def test_within_the_budget_nothing_is_over_it(asked: dict[str, Any]) -> None:
    """No warning without a cause."""
    assert not _choose(_QUOTA, **asked).over_budget


def test_a_batch_number_above_the_budget_counts_too() -> None:
    """Both numbers draw on the same CPUs."""
    assert _choose(_QUOTA, launch_threads=1, launch_threads_batch=3).over_budget


def test_without_a_known_budget_nothing_is_over_it() -> None:
    """Nothing is known of the machine: no warning is made up."""
    assert not _choose(_UNKNOWN, launch_threads=64).over_budget


def _under(quota: float, host: int = 96) -> CpuBudget:
    return CpuBudget(host, host, None, quota, quota, max(1, int(quota)), host, "/cg/cpu.max", f"quota {quota:g}")


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.01, 1), (0.5, 1), (1.0, 1), (1.49, 1), (1.5, 2), (1.99, 2), (2.0, 2), (2.5, 2), (7.65, 7)]
)
def test_a_part_of_a_cpu_is_worth_a_thread_between_one_and_two_only(quota: float, threads: int) -> None:
    """Two threads beat one from 1.5 CPUs on; above two, one more thread than CPUs stands still too much."""
    assert threads_under_quota(quota) == threads
    assert _choose(_under(quota)).threads == threads


def test_rounding_up_is_said_and_is_not_over_the_budget() -> None:
    """1.5 CPUs are two threads, of which the owner is not warned."""
    choice = _choose(_under(1.5), launch_threads=2)

    assert not choice.over_budget
    assert "2 of 96 CPUs (1.5, rounded up)" in _choose(_under(1.5)).choices[0].reason


def test_a_device_launch_under_less_than_two_cpus_gets_what_there_is() -> None:
    """The default of two is no reason to break a quota of one."""
    assert _choose(_under(1.0), gpu_resident=True).threads == 1


@pytest.mark.parametrize(
    ("cpu", "others", "threads", "batch"),
    [
        (_FREE, Beside(cpu_resident=1), 4, 8),
        (_FREE, Beside(cpu_resident=2), 2, 5),
        (_FREE, Beside(cpu_resident=40), 1, 1),
        (_FREE, Beside(gpu_threads=2), 6, 14),
        (_FREE, Beside(cpu_resident=1, gpu_threads=2), 3, 7),
        (_FREE, Beside(gpu_threads=64), 1, 1),
        (_under(8.0), Beside(cpu_resident=1), 4, 4),
        (_under(3.0), Beside(cpu_resident=1), 2, 2),
        (_UNKNOWN, Beside(cpu_resident=3), None, None),
    ],
)
def test_the_budget_is_divided_among_those_that_may_be_busy_at_once(
    cpu: CpuBudget, others: Beside, threads: int, batch: int
) -> None:
    """What launches on devices use comes off first; the rest is divided by those that the CPU computes."""
    choice = _choose(cpu, beside=others)

    assert (choice.threads, choice.threads_batch) == (threads, batch)


def test_the_division_is_shown() -> None:
    """Whoever wonders about 3 threads of 8 CPUs finds the sum."""
    reason = _choose(_under(8.0), beside=Beside(cpu_resident=1, gpu_threads=2)).choices[0].reason

    assert reason.startswith("3 of 96 CPUs ((8 - 2 for instances on devices) / 2 instances that may be busy at once)")


def test_an_explicit_number_is_measured_by_the_share() -> None:
    """It stands beside another instance too, and the owner hears what it costs."""
    alone = _choose(_under(8.0), launch_threads=8)
    shared = _choose(_under(8.0), launch_threads=8, beside=Beside(cpu_resident=1))

    assert (alone.threads, alone.over_budget) == (8, False)
    assert (shared.threads, shared.over_budget) == (8, True)


def test_what_runs_beside_is_counted_by_where_it_computes() -> None:
    """One on the CPU, one on a device with its threads, one that has no plan yet and counts as on the CPU."""
    running = [
        plan_with(threads=4),
        plan_with(threads=1, gpu_resident=True),
        plan_with(threads=None, gpu_resident=True),
    ]

    assert beside("split", [*running, None]) == Beside(cpu_resident=2, gpu_threads=1 + GPU_RESIDENT_THREADS)
    assert beside("exclusive", [*running, None]) == ALONE
    assert beside("split", []) == ALONE


_COUNT = st.none() | st.integers(1, 512)


@given(
    host=_COUNT,
    physical=_COUNT,
    quota=st.none() | st.floats(0.001, 600),
    asked=st.fixed_dictionaries(
        {
            "launch_threads": _COUNT,
            "default_threads": _COUNT,
            "launch_threads_batch": _COUNT,
            "default_threads_batch": _COUNT,
            "extra_args_own": st.booleans(),
            "gpu_resident": st.booleans(),
        }
    ),
    others=st.builds(Beside, st.integers(0, 9), st.integers(0, 20)),
)
def test_only_an_explicit_number_exceeds_the_budget(
    host: int | None, physical: int | None, quota: float | None, asked: dict[str, Any], others: Beside
) -> None:
    """What we choose by ourselves is between 1 and the budget; every choice has words."""
    effective = min((float(limit) for limit in (host, quota) if limit is not None), default=None)
    threads = max(1, int(effective)) if effective is not None else 1
    choice = _choose(CpuBudget(host, None, None, quota, effective, threads, physical), beside=others, **asked)

    written = {value for value in asked.values() if value is not None}
    most = GPU_RESIDENT_THREADS if effective is None else threads_under_quota(effective)
    for number in (choice.threads, choice.threads_batch):
        assert number is None or number in written or 1 <= number <= most
    assert all(made.reason for made in choice.choices)
    if choice.over_budget:
        assert max(choice.threads or 0, choice.threads_batch or 0) in written
