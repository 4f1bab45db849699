"""What launches have shown takes the place of what was predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Capability, MemoryEstimate, ModelMetadata, PlanDraft
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.planning.corrections import Learned, correct, corrected_by, kind_of, learn, told

MIB = 2**20
PREDICTED = MemoryEstimate(weights=100 * MIB, kv=40 * MIB, compute=10 * MIB, other=20 * MIB, mapped=90 * MIB, upper=MIB)
DRAFT = PlanDraft(
    model_id="m",
    files=(Path("/m.gguf"),),
    metadata=ModelMetadata("gguf", "llama", 100 * MIB, 96 * MIB),
    settings=LlamaCppSettings(threads=2),
    capabilities=frozenset({Capability.CHAT}),
    threads=2,
    threads_batch=2,
    devices=None,
    n_gpu_layers=None,
    ctx_size=2048,
    slots=2,
    cache_type=None,
)


def test_what_was_declared_is_the_prediction_from_then_on() -> None:
    """Part by part, without a margin; what the log only rounds stays exact."""
    declared = MemoryEstimate(weights=100 * MIB + 4000, kv=48 * MIB, compute=12 * MIB, mapped=90 * MIB)
    after = correct({"host": PREDICTED}, Learned({"host": declared}))["host"]

    assert after == MemoryEstimate(100 * MIB, 48 * MIB, 12 * MIB, 20 * MIB, 90 * MIB, None)


def test_what_the_process_holds_beyond_is_added_to_the_program() -> None:
    """Less held than predicted takes nothing off: prompts that are kept come later."""
    declared = MemoryEstimate(weights=100 * MIB, kv=40 * MIB, compute=10 * MIB, mapped=90 * MIB)
    more = correct({"host": PREDICTED}, Learned({"host": declared}, {"host": 95 * MIB}))["host"]
    less = correct({"host": PREDICTED}, Learned({"host": declared}, {"host": 30 * MIB}))["host"]

    assert more.anonymous == 95 * MIB
    assert (more.mapped, more.kv) == (90 * MIB, 40 * MIB)
    assert less.other == 20 * MIB


def test_the_program_s_own_part_is_corrected_in_both_directions() -> None:
    """By what was seen at readiness; what is still to grow (prompt cache, checkpoints) stays on top."""
    predicted = replace(PREDICTED, upper=None, ready=65 * MIB)
    declared = MemoryEstimate(weights=100 * MIB, kv=40 * MIB, compute=10 * MIB, mapped=90 * MIB)
    for seen, other in ((62, 17), (70, 25)):
        learned = learn(None, {"host": declared}, {"host": seen * MIB}, just_ready=True)
        after = correct({"host": predicted}, learned)["host"]
        assert (after.other, after.ready) == (other * MIB, seen * MIB)

    larger = replace(declared, kv=48 * MIB)  # what the log tells of caches is no part of the program
    learned = learn(None, {"host": larger}, {"host": 70 * MIB}, just_ready=True)
    assert correct({"host": predicted}, learned)["host"].other == 17 * MIB


def test_a_request_that_was_quicker_than_the_first_look_does_no_lasting_harm() -> None:
    """The least of several launches counts, and later looks do not."""
    learned = None
    for size, ready in ((90, True), (62, True), (200, False), (95, True)):
        learned = learn(learned, {"host": PREDICTED}, {"host": size * MIB}, just_ready=ready)
    assert learned is not None
    assert (learned.ready, learned.held) == ({"host": 62 * MIB}, {"host": 200 * MIB})


def test_a_device_s_own_context_is_learned() -> None:
    """No log tells it: what the driver shows of the process, less the buffers."""
    predicted = MemoryEstimate(weights=1000 * MIB, kv=100 * MIB, compute=50 * MIB, mapped=0)
    learned = Learned({"CUDA0": predicted}, {"CUDA0": 1500 * MIB})
    assert correct({"CUDA0": predicted}, learned)["CUDA0"].other == 350 * MIB


def test_what_was_not_predicted_at_all_is_known_now() -> None:
    """A header that says too little gives weights alone."""
    bare = MemoryEstimate(weights=100 * MIB, mapped=100 * MIB)
    declared = MemoryEstimate(weights=100 * MIB, kv=48 * MIB, compute=12 * MIB, mapped=90 * MIB)
    after = correct({"host": bare}, Learned({"host": declared, "CUDA0": MemoryEstimate(compute=MIB)}))

    assert (after["host"].kv, after["host"].mapped, after["CUDA0"].compute) == (48 * MIB, 90 * MIB, MIB)


def test_the_correction_is_told_in_words() -> None:
    """With both figures; nothing is said where nothing changed."""
    after = {"host": replace(PREDICTED, kv=48 * MIB)}
    (choice,) = told({"host": PREDICTED}, after)

    assert choice.reason == "predicted 170.0 MiB in host, corrected by +8.0 MiB seen at earlier launches"
    assert told(after, after) == ()


def test_a_kind_is_all_that_matters_for_memory() -> None:
    """Another context, build, setting or file is another kind; other threads are not."""
    kind = kind_of(DRAFT, "f")
    same = replace(DRAFT, threads=8, threads_batch=8, settings=LlamaCppSettings(threads=8), model_id="alias")
    others = [
        replace(DRAFT, ctx_size=4096),
        replace(DRAFT, devices=("CUDA0",)),
        replace(DRAFT, settings=LlamaCppSettings(ubatch_size=64)),
        replace(DRAFT, metadata=replace(DRAFT.metadata, file_bytes=1)),
    ]
    assert kind_of(same, "f") == kind
    assert kind not in {kind_of(DRAFT, "g"), *(kind_of(other, "f") for other in others)}


def test_only_its_own_kind_is_corrected() -> None:
    """The estimator is asked for many drafts of one model."""
    learned = {kind_of(DRAFT, "f"): Learned({"host": replace(PREDICTED, kv=MIB)})}
    estimate = corrected_by(lambda draft: {"host": PREDICTED}, "f", learned)

    assert estimate(DRAFT)["host"].kv == MIB
    assert estimate(replace(DRAFT, slots=1))["host"].kv == 40 * MIB


_SIZES = st.one_of(st.none(), st.integers(0, 2**40))
_ESTIMATES = st.builds(MemoryEstimate, _SIZES, _SIZES, _SIZES, _SIZES)


@given(_ESTIMATES, _ESTIMATES, st.lists(st.integers(0, 2**40), max_size=4))
def test_whatever_was_seen_is_never_predicted_to_be_less(
    predicted: MemoryEstimate, declared: MemoryEstimate, held: list[int]
) -> None:
    """After any number of looks, the process's own memory is at least the most that it ever held."""
    learned = learn(None, {"host": declared}, {})
    for size in held:
        learned = learn(learned, {"host": declared}, {"host": size})
    after = correct({"host": predicted}, learned)["host"]
    assert not held or (after.anonymous or 0) >= max(held)
