"""How many threads an engine gets, and why.

A rule answers or passes; the first answer stands:

1. a number of the model's own settings, then of the engine's defaults: never clamped, but its cost is said;
2. the user's extra arguments hold the flag: nothing is said, so that the user's word stands;
3. the CPU budget, where a quota binds: threads beyond it are stopped in every period, and the others wait for them;
4. cores for generation, which waits for memory, so that a second thread on a core adds little; all CPUs for batch.

A default for launches whose layers all lie on a GPU belongs between 2 and 3: one more function in ``_RULES``, and a
field of ``ThreadRequest`` that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.contract import Choice
from supervisor.host.cpu import CpuBudget

_GENERATION = "threads"
_BATCH = "threads_batch"

# Measured with llama-server under a quota of one CPU.
_COST = "1 thread gave 52 tokens/s, 8 gave 21, 16 gave 15 under a quota of one CPU"


@dataclass(frozen=True, slots=True)
class ThreadRequest:
    """What was asked for, and what there is.

    Attributes:
        launch_threads, launch_threads_batch: of the model's own launch settings; None: not said.
        default_threads, default_threads_batch: of the engine's defaults; None: not said.
        extra_args_own: the user's extra arguments hold the engine's thread flag.
    """

    cpu: CpuBudget
    launch_threads: int | None = None
    default_threads: int | None = None
    launch_threads_batch: int | None = None
    default_threads_batch: int | None = None
    extra_args_own: bool = False


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


def choose_threads(request: ThreadRequest) -> ThreadChoice:
    """Threads for generation and for batch, each with its reason."""
    generation = _first_answer(request, _GENERATION)
    batch = _first_answer(request, _BATCH)
    budget = _budget(request.cpu)
    asked = [answer.threads for answer in (generation, batch) if answer.threads is not None]
    return ThreadChoice(
        threads=generation.threads,
        threads_batch=batch.threads,
        choices=(
            Choice(_GENERATION, generation.threads, generation.reason),
            Choice(_BATCH, batch.threads, batch.reason),
        ),
        over_budget=budget is not None and max(asked, default=0) > budget,
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
            return _Answer(threads, f"{name} says {threads}{_cost(threads, request.cpu)}")
    return None


def _extra_args(request: ThreadRequest, _choice: str) -> _Answer | None:
    if request.extra_args_own:
        return _Answer(None, "extra_args hold the engine's thread flag: nothing is added")
    return None


def _same_as_generation(request: ThreadRequest, choice: str) -> _Answer | None:
    """An explicit number without one for batch is meant for both, as the engine itself has it."""
    generation = _explicit(request, _GENERATION) if choice == _BATCH else None
    return generation and _Answer(generation.threads, f"as threads: {generation.reason}")


def _quota(request: ThreadRequest, _choice: str) -> _Answer | None:
    cpu = request.cpu
    return _Answer(cpu.threads, _limit_in_words(cpu)) if cpu.quota_binds else None


def _cores(request: ThreadRequest, choice: str) -> _Answer | None:
    cpu = request.cpu
    budget = _budget(cpu)
    if budget is None:
        return None
    if choice == _BATCH or cpu.physical_count is None:
        unknown = "" if choice == _BATCH else "; which of them share a core is not known"
        return _Answer(budget, f"{_limit_in_words(cpu)}{unknown}")
    cores = max(1, min(cpu.physical_count, budget))
    if cores == budget:
        return _Answer(cores, f"{_limit_in_words(cpu)}; each is a core of its own")
    return _Answer(cores, f"{_plural(cores, 'core')} under {_plural(budget, 'CPU')}; {_limit_in_words(cpu)}")


_RULES: tuple[_Rule, ...] = (_explicit, _extra_args, _same_as_generation, _quota, _cores)


def _budget(cpu: CpuBudget) -> int | None:
    return None if cpu.effective is None else cpu.threads


def _cost(threads: int, cpu: CpuBudget) -> str:
    """What a number above the budget costs; empty when it is within it."""
    budget = _budget(cpu)
    if budget is None or threads <= budget:
        return ""
    above = f", {threads - budget} above the budget of {_limit_in_words(cpu)}"
    if cpu.quota_binds:
        return f"{above}; they use up the quota early in each period and all stand still for its rest: {_COST}"
    return f"{above}; they take turns on the same CPUs, and the others wait for them at every layer"


def _limit_in_words(cpu: CpuBudget) -> str:
    """``2 of 96 CPUs: quota 200000/100000 in /sys/fs/cgroup/cpu.max``."""
    of = _plural(cpu.threads, "CPU") if cpu.host_count is None else f"{cpu.threads} of {_plural(cpu.host_count, 'CPU')}"
    rounded = f" ({cpu.effective:g}, rounded down)" if cpu.effective and cpu.effective > cpu.threads else ""
    return f"{of}{rounded}: {cpu.why or 'the limit'} in {cpu.source or 'an unnamed place'}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
