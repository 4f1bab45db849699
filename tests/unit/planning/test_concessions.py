"""The ladder of concessions, on a model of simple arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.planning.concessions import STEPS, Ladder, Outcome, concede
from tests.fakes.memory_model import MIB, MemoryModel, draft_of, placements_of, scales_of

MODEL = MemoryModel()  # 33 layers of 100 MiB; 8 MiB of cache a layer for each slot of 8192 tokens in f16
MIXTURE = replace(MODEL, dense=20, experts=80)
WEIGHTS = 33 * 100 + 50
LARGE = 100_000


def climb(
    card: int | None,
    model: MemoryModel = MODEL,
    *,
    host: int = LARGE,
    allowed: tuple[str, ...] = STEPS,
    fixed: tuple[str, ...] = (),
) -> Outcome:
    """Four slots of 8192 tokens on a host with one card, or none; sizes in MiB."""
    scales = scales_of(model, host) if card is None else scales_of(model, host, card)
    placements = placements_of(model, scales, () if card is None else ("GPU0",))
    ladder = Ladder(allowed, dict.fromkeys(fixed, "launch says it"), 4096)
    return concede(draft_of(), placements, model.movable(), ladder, scales)


def test_what_fits_gives_nothing_up() -> None:
    """No concession, no header, no table."""
    outcome = climb(WEIGHTS + 33 * 32)
    assert outcome.weighed.fits
    assert (outcome.degraded, outcome.choices, outcome.attempts) == ((), (), ())


@pytest.mark.parametrize(
    ("room", "degraded", "slots", "cache_type", "ctx_size"),
    [
        (33 * 24, ("slots",), 3, "f16", 8192),
        (33 * 8, ("slots",), 1, "f16", 8192),
        (33 * 4, ("slots", "cache_type"), 1, "q8_0", 8192),
        (33 * 2, ("slots", "cache_type"), 1, "q4_0", 8192),
        (33 * 1.5, ("slots", "cache_type", "ctx_size"), 1, "q4_0", 6144),
        (33 * 1, ("slots", "cache_type", "ctx_size"), 1, "q4_0", 4096),
    ],
)
def test_sizes_go_down_step_by_step(
    room: float, degraded: tuple[str, ...], slots: int, cache_type: str, ctx_size: int
) -> None:
    """Slots, then the KV type, then the context in whole multiples of 1024, and no more of each than is needed."""
    outcome = climb(WEIGHTS + round(room))
    draft = outcome.weighed.draft
    assert outcome.weighed.fits
    assert outcome.degraded == degraded
    assert (draft.slots, draft.cache_type, draft.ctx_size) == (slots, cache_type, ctx_size)
    assert draft.n_gpu_layers == 33


def test_experts_leave_before_layers() -> None:
    """Weights too large for the card: experts go to the host, and what was given up in vain is taken back."""
    outcome = climb(2000, MIXTURE)
    assert outcome.degraded == ("experts_to_cpu",)
    assert (outcome.weighed.draft.slots, outcome.weighed.draft.ctx_size) == (4, 8192)


def test_a_part_of_the_layers_where_there_are_no_experts() -> None:
    """Fewer slots bring a quarter more layers onto the card, so they go too; the KV type would not, and stays."""
    outcome = climb(1600)
    draft = outcome.weighed.draft
    assert outcome.degraded == ("slots", "n_gpu_layers")
    assert (draft.slots, draft.cache_type, draft.ctx_size, draft.n_gpu_layers) == (1, "f16", 8192, 14)


def test_the_cpu_is_the_last_place() -> None:
    """Not even two layers fit on the card."""
    outcome = climb(100)
    assert outcome.degraded == ("cpu",)
    assert outcome.weighed.draft.devices == ()
    assert "all on the CPU" in outcome.choices[0].reason


def test_sizes_count_on_the_cpu_too() -> None:
    """Without a device there is nothing to move: only slots, KV type and context."""
    outcome = climb(None, host=WEIGHTS + 33 * 8)
    assert outcome.degraded == ("slots",)
    assert outcome.weighed.draft.slots == 1


def test_what_does_not_fit_has_its_table() -> None:
    """Each step with what it needed and what there was; the last is the closest that was found."""
    outcome = climb(100, host=1000)
    assert not outcome.weighed.fits
    steps = [row.step for row in outcome.attempts]
    assert steps[0] == "as wished"
    assert any("no device, all on the CPU" in step for step in steps)
    assert all(row.budget["host"] == 1000 * MIB for row in outcome.attempts)
    assert all(any(size > (row.budget[pool] or 0) for pool, size in row.needed.items()) for row in outcome.attempts)


@pytest.mark.parametrize("left_out", STEPS)
def test_a_step_that_the_config_leaves_out_is_not_taken(left_out: str) -> None:
    """On any machine."""
    allowed = tuple(step for step in STEPS if step != left_out)
    for card in (100, 1600, 2000, WEIGHTS + 30, WEIGHTS + 33 * 8):
        assert left_out not in climb(card, MIXTURE, allowed=allowed).degraded


def test_the_order_is_the_configs() -> None:
    """Layers before slots: the card holds fewer layers of four slots."""
    outcome = climb(WEIGHTS + 33 * 8, allowed=("n_gpu_layers", "slots"))
    assert outcome.degraded == ("n_gpu_layers",)
    assert outcome.weighed.draft.slots == 4


def test_the_users_own_sizes_stand() -> None:
    """An explicit number is not given up, and where nothing fits it is said that it was kept."""
    outcome = climb(None, host=WEIGHTS + 33 * 2, fixed=("slots", "cache_type"))
    assert not outcome.weighed.fits
    assert outcome.degraded == ("ctx_size",)
    assert {(choice.value, choice.reason) for choice in outcome.choices if choice.choice == "kept"} == {
        ("slots", "not given up: launch says it"),
        ("cache_type", "not given up: launch says it"),
    }


@settings(deadline=None)
@given(
    card=st.one_of(st.none(), st.integers(0, 6000)),
    host=st.integers(0, 8000),
    experts=st.booleans(),
    allowed=st.permutations(STEPS).flatmap(lambda steps: st.integers(0, 6).map(lambda count: tuple(steps[:count]))),
)
def test_whatever_the_rooms(card: int | None, host: int, experts: bool, allowed: tuple[str, ...]) -> None:
    """What is said to fit does, only allowed steps are taken, each has a reason, and the context keeps its floor."""
    outcome = climb(card, MIXTURE if experts else MODEL, host=host, allowed=allowed)
    draft, weighed = outcome.weighed.draft, outcome.weighed
    budgets = {"host": host * MIB, "gpu-0": (card or 0) * MIB}
    assert weighed.fits == all(size <= budgets[pool] for pool, size in weighed.needed.items())
    assert set(outcome.degraded) <= set(allowed)
    assert {choice.value for choice in outcome.choices if choice.choice == "conceded"} == set(outcome.degraded)
    assert (draft.ctx_size or 0) >= 4096
    assert (draft.ctx_size or 0) % 1024 == 0
