"""Whether the CPU has anything to compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.contract import DeviceListing, LaunchPlan, Movable, PlanDraft
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.planning.residency import gpu_resident
from tests.unit.planning.test_planner import CARD, LLVMPIPE, METADATA, REQUEST, plan

_PSEUDO = DeviceListing("BLAS", "Accelerate", "accel", 0, 0, usable=False)
_LAYERS = Movable(layers=31, expert_layers=0, cache_types=(), owned=frozenset())


def _draft(devices: tuple[str, ...] | None, layers: int | None, n_cpu_moe: int = 0) -> PlanDraft:
    return PlanDraft(
        model_id="m",
        files=REQUEST.files,
        metadata=METADATA,
        settings=LlamaCppSettings(),
        capabilities=REQUEST.capabilities,
        threads=1,
        threads_batch=1,
        devices=devices,
        n_gpu_layers=layers,
        ctx_size=512,
        slots=1,
        cache_type="f16",
        n_cpu_moe=n_cpu_moe,
    )


@pytest.mark.parametrize(
    ("draft", "listed", "resident"),
    [
        (_draft(None, None), (CARD,), True),
        (_draft(("CUDA0",), 31), (CARD,), True),
        (_draft(("CUDA0",), 99), (CARD, _PSEUDO), True),
        (_draft(("CUDA0",), 30), (CARD,), False),  # the output, the largest matrix, stays behind
        (_draft(("CUDA0",), 31, n_cpu_moe=4), (CARD,), False),
        (_draft(("CUDA0",), 0), (CARD,), False),
        (_draft((), 0), (CARD,), False),
        (_draft(None, None), (), False),
        (_draft(None, None), None, False),
        (_draft(None, None), (_PSEUDO,), False),
        (_draft(("Vulkan0",), None), (LLVMPIPE,), False),  # the CPU in disguise
        (_draft(("CUDA7",), None), (CARD,), False),
    ],
)
def test_only_what_is_known_to_lie_on_hardware_counts(
    draft: PlanDraft, listed: tuple[DeviceListing, ...] | None, resident: bool
) -> None:
    """All layers and the output, on devices that the build lists and that are no software."""
    assert gpu_resident(draft, _LAYERS, listed) is resident


def test_a_model_of_an_unknown_number_of_layers_is_not_known_to_lie_there() -> None:
    """99 may be all of them, or not."""
    assert not gpu_resident(_draft(("CUDA0",), 99), replace(_LAYERS, layers=None), (CARD,))


def _on_the_card(**launch: Any) -> LaunchPlan:
    facts = replace(REQUEST.build.facts, devices=(CARD,))
    return plan(replace(REQUEST, build=replace(REQUEST.build, facts=facts), launch=LlamaCppSettings(**launch)))


@pytest.mark.parametrize(
    "extra", [("--n-cpu-moe", "4"), ("-ot", "exps=CPU"), ("--no-kv-offload",), ("-ngl=3",), ("-dev", "none")]
)
def test_extra_arguments_may_keep_work_on_the_cpu(extra: tuple[str, ...]) -> None:
    """Experts, tensors or the KV cache on the CPU: it needs its threads, however many layers are on a device."""
    made = _on_the_card(extra_args=extra)

    assert not made.gpu_resident


def test_a_launch_on_a_card_gets_two_threads_and_says_so() -> None:
    """In the plan and in the arguments."""
    made = _on_the_card()

    assert made.gpu_resident
    assert (made.threads, made.threads_batch) == (2, 2)
    assert made.argv[made.argv.index("--threads") + 1] == "2"
    assert next(row.reason for row in made.rationale if row.choice == "threads").startswith(
        "all layers are on a device"
    )


def test_the_users_threads_stand_on_a_card_too() -> None:
    """His number, or his extra arguments, of which the plan says nothing."""
    assert _on_the_card(threads=5).threads == 5
    silent = _on_the_card(extra_args=("-t", "7"))
    assert silent.threads is None
    assert "--threads" not in silent.argv
