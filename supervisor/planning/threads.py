"""How many threads an engine gets, and why.

A rule answers or passes; the first answer stands:

1. a number of the model's own settings, then of the engine's defaults: never clamped, but its cost is said;
2. the user's extra arguments hold the flag: nothing is said, so that the user's word stands;
3. all layers lie on a device: one or two threads feed it, and more would only wait for each other;
4. this launch's share of the CPU budget, where a quota binds: threads beyond it are stopped in every period, and the
   others wait for them;
5. its share of the cores for generation, which waits for memory, so that a second thread on a core adds little; of all
   CPUs for batch.

Decision record 9 has the measurements behind 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from engines.contract import ALONE, Beside, Choice, LaunchPlan
from supervisor.host.cpu import CpuBudget

_GENERATION = "threads"
_BATCH = "threads_batch"

CpuShare = Literal["split", "exclusive"]

# With all layers on a device, what is left to the CPU is rows of the embedding table and sampling.
GPU_RESIDENT_THREADS = 2
# Between one and two CPUs two threads are faster from here on; above two, a part of a CPU more is not worth a thread.
_TWO_THREADS_FROM = 1.5

# Measured with llama-server under a quota of one CPU.
_COST = "1 thread gave 52 tokens/s, 8 gave 21, 16 gave 15 under a quota of one CPU"


@dataclass(frozen=True, slots=True)
class ThreadRequest:
    """What was asked for, and what there is.

    Attributes:
        launch_threads, launch_threads_batch: of the model's own launch settings; None: not said.
        default_threads, default_threads_batch: of the engine's defaults; None: not said.
        extra_args_own: the user's extra arguments hold the engine's thread flag.
        gpu_resident: all layers lie on a device.
        beside: what else runs and takes of the budget; see ``beside``.
    """

    cpu: CpuBudget
    launch_threads: int | None = None
    default_threads: int | None = None
    launch_threads_batch: int | None = None
    default_threads_batch: int | None = None
    extra_args_own: bool = False
    gpu_resident: bool = False
    beside: Beside = ALONE


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The numbers to pass; None: pass nothing, the engine or the extra arguments decide.

    Attributes:
        choices: one for each number, with its reason.
        over_budget: a number is above the CPU budget, because somebody asked for it.
    """

    threads: int | None
    threads_batch: int | None
    choices: tuple[Choice, ...]
    over_budget: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    threads: int | None
    reason: str


_Rule = Callable[[ThreadRequest, str], _Answer | None]


def beside(share: CpuShare, running: Iterable[LaunchPlan | None]) -> Beside:
    """What a new launch shares the CPUs with.

    Args:
        share: ``split``: all that run may be busy at once; ``exclusive``: one at a time, so that each gets everything.
        running: plans of the other instances that run; None: one that starts and has no plan yet.
    """
    if share == "exclusive":
        return ALONE
    plans = tuple(running)
    on_device = [plan for plan in plans if plan is not None and plan.gpu_resident]
    threads = sum(GPU_RESIDENT_THREADS if plan.threads is None else plan.threads for plan in on_device)
    return Beside(cpu_resident=len(plans) - len(on_device), gpu_threads=threads)


def threads_under_quota(cpus: float) -> int:
    """Threads for so many CPUs' worth of time: rounded down, but two from 1.5 on; at least one."""
    return 2 if _TWO_THREADS_FROM <= cpus < 2 else max(1, int(cpus))  # noqa: PLR2004  see the constant


def choose_threads(request: ThreadRequest) -> ThreadChoice:
    """Threads for generation and for batch, each with its reason."""
    generation = _first_answer(request, _GENERATION)
    batch = _first_answer(request, _BATCH)
    share = _share(request)
    asked = [answer.threads for answer in (generation, batch) if answer.threads is not None]
    return ThreadChoice(
        threads=generation.threads,
        threads_batch=batch.threads,
        choices=(
            Choice(_GENERATION, generation.threads, generation.reason),
            Choice(_BATCH, batch.threads, batch.reason),
        ),
        over_budget=share is not None and max(asked, default=0) > share,
    )


def _first_answer(request: ThreadRequest, choice: str) -> _Answer:
    for rule in _RULES:
        answer = rule(request, choice)
        if answer is not None:
            return answer
    return _Answer(None, "nothing is known of this machine's CPUs: the engine decides")


def _explicit(request: ThreadRequest, choice: str) -> _Answer | None:
    """What somebody wrote down for this very number."""
    settings = (
        [("launch.threads", request.launch_threads), ("defaults.threads", request.default_threads)]
        if choice == _GENERATION
        else [
            ("launch.threads_batch", request.launch_threads_batch),
            ("defaults.threads_batch", request.default_threads_batch),
        ]
    )
    for name, threads in settings:
        if threads is not None:
            return _Answer(threads, f"{name} says {threads}{_cost(threads, request)}")
    return None


def _extra_args(request: ThreadRequest, _choice: str) -> _Answer | None:
    if request.extra_args_own:
        return _Answer(None, "extra_args hold the engine's thread flag: nothing is added")
    return None


def _same_as_generation(request: ThreadRequest, choice: str) -> _Answer | None:
    """An explicit number without one for batch is meant for both, as the engine itself has it."""
    generation = _explicit(request, _GENERATION) if choice == _BATCH else None
    return generation and _Answer(generation.threads, f"as threads: {generation.reason}")


def _gpu_resident(request: ThreadRequest, _choice: str) -> _Answer | None:
    if not request.gpu_resident:
        return None
    share = _share(request)
    threads = GPU_RESIDENT_THREADS if share is None else min(GPU_RESIDENT_THREADS, share)
    why = "all layers are on a device: more threads would only wait for each other"
    return _Answer(threads, why if share is None else f"{why}; {_limit_in_words(request)}")


def _quota(request: ThreadRequest, _choice: str) -> _Answer | None:
    return _Answer(_share(request), _limit_in_words(request)) if request.cpu.quota_binds else None


def _cores(request: ThreadRequest, choice: str) -> _Answer | None:
    cpu = request.cpu
    share = _share(request)
    if share is None:
        return None
    limit = _limit_in_words(request)
    if choice == _BATCH or cpu.physical_count is None:
        unknown = "" if choice == _BATCH else "; which of them share a core is not known"
        return _Answer(share, f"{limit}{unknown}")
    cores = max(1, min(int(_divided(request, min(cpu.physical_count, cpu.threads))), share))
    if cores == share:
        return _Answer(cores, f"{limit}; each is a core of its own")
    return _Answer(cores, f"{_plural(cores, 'core')} under {_plural(share, 'CPU')}; {limit}")


_RULES: tuple[_Rule, ...] = (_explicit, _extra_args, _same_as_generation, _gpu_resident, _quota, _cores)


def _share(request: ThreadRequest) -> int | None:
    """Threads that this launch may have of the budget; None: the budget is not known."""
    cpu = request.cpu
    if cpu.effective is None:
        return None
    left = _divided(request, cpu.effective)
    return threads_under_quota(left) if cpu.quota_binds else max(1, int(left))


def _divided(request: ThreadRequest, cpus: float) -> float:
    """What is left of so many CPUs beside launches on devices, divided among those that the CPU computes."""
    others = request.beside
    if request.gpu_resident:
        return cpus  # one or two threads; they are taken from the others' shares, not the other way round
    return max(0.0, cpus - others.gpu_threads) / (others.cpu_resident + 1)


def _cost(threads: int, request: ThreadRequest) -> str:
    """What a number above the share costs; empty when it is within it."""
    share = _share(request)
    if share is None or threads <= share:
        return ""
    above = f", {threads - share} above the budget of {_limit_in_words(request)}"
    if request.cpu.quota_binds:
        return f"{above}; they use up the quota early in each period and all stand still for its rest: {_COST}"
    return f"{above}; they take turns on the same CPUs, and the others wait for them at every layer"


def _limit_in_words(request: ThreadRequest) -> str:
    """``2 of 96 CPUs: quota 200000/100000 in /sys/fs/cgroup/cpu.max``, and what of it others use."""
    cpu, share = request.cpu, _share(request)
    count = cpu.threads if share is None else share
    of = _plural(count, "CPU") if cpu.host_count is None else f"{count} of {_plural(cpu.host_count, 'CPU')}"
    rounded, divided = "", _divided(request, cpu.effective or 0.0)
    if cpu.effective and divided != count:
        rounded = f" ({_sum(request)}, rounded {'down' if divided > count else 'up'})"
    elif cpu.effective and divided != cpu.effective:
        rounded = f" ({_sum(request)})"
    return f"{of}{rounded}: {cpu.why or 'the limit'} in {cpu.source or 'an unnamed place'}"


def _sum(request: ThreadRequest) -> str:
    """``2.5``, or how it was divided: ``(4 - 2 for instances on devices) / 3 instances``."""
    others, cpus = request.beside, f"{request.cpu.effective:g}"
    if request.gpu_resident or others == ALONE:
        return cpus
    left = f"{cpus} - {others.gpu_threads} for instances on devices" if others.gpu_threads else cpus
    if not others.cpu_resident:
        return left
    left = f"({left})" if others.gpu_threads else left
    return f"{left} / {others.cpu_resident + 1} instances that may be busy at once"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
