"""What a command line says about memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.llama_cpp.memory_argv import choices_from_argv
from engines.llama_cpp.memory_launch import LaunchChoices

_FLAGS = (
    "-c",
    "--ctx-size",
    "-np",
    "-ngl",
    "-ub",
    "--batch-size",
    "-dev",
    "-ts",
    "-sm",
    "-mg",
    "-fa",
    "-ctk",
    "-ncmoe",
)
_OTHERS = ("--kv-unified", "--cache-ram", "--pooling", "none", "auto", "all", "-1", "0", "7", "CUDA1,x", "1,x", "=", "")
_WORDS = st.sampled_from((*_FLAGS, *_OTHERS))


def test_long_short_and_joined_forms_say_the_same() -> None:
    """``-c 8``, ``--ctx-size 8`` and ``--ctx-size=8`` are one choice."""
    forms = [
        ("-c", "8192", "-np", "2", "-ctk", "q8_0", "-ngl", "5"),
        ("--ctx-size", "8192", "--parallel", "2", "--cache-type-k", "q8_0", "--n-gpu-layers", "5"),
        ("--ctx-size=8192", "--parallel=2", "--cache-type-k=q8_0", "--gpu-layers=5"),
    ]
    expected = LaunchChoices(ctx_size=8192, slots=2, cache_type_k="q8_0", n_gpu_layers=5)
    assert [choices_from_argv(form) for form in forms] == [expected] * 3


def test_the_last_word_wins() -> None:
    """Extra arguments come last, and take over."""
    assert choices_from_argv(("-ub", "512", "--ubatch-size", "128")).ubatch == 128
    assert choices_from_argv(("--no-kv-unified", "-kvu")).kv_unified is True


def test_what_the_server_works_out_is_not_said() -> None:
    """``-c 0``, ``-np -1`` and ``-ngl auto`` leave it to the server."""
    assert choices_from_argv(("-c", "0", "-np", "-1", "-ngl", "auto")) == LaunchChoices()
    assert choices_from_argv(("-ngl", "-1")).n_gpu_layers is None
    assert choices_from_argv(("--cache-ram", "-1")).cache_ram is None


def test_devices_are_the_builds_own_unless_named() -> None:
    """``--device none`` is the CPU; ``--split-mode none`` uses one of them."""
    both = ("CUDA0", "CUDA1")
    assert choices_from_argv((), devices=both).devices == both
    assert choices_from_argv(("--device", "none"), devices=both).devices == ()
    assert choices_from_argv(("-dev", "CUDA1"), devices=both).devices == ("CUDA1",)
    assert choices_from_argv(("-sm", "none", "-mg", "1"), devices=both).devices == ("CUDA1",)


def test_shares_that_do_not_fit_the_devices_are_left_aside() -> None:
    """``--tensor-split`` counts only with a number for each device."""
    assert choices_from_argv(("-ts", "3,1"), devices=("CUDA0", "CUDA1")).shares == (3.0, 1.0)
    assert choices_from_argv(("-ts", "3"), devices=("CUDA0", "CUDA1")).shares == ()
    assert choices_from_argv(("-ts", "0,0"), devices=("CUDA0", "CUDA1")).shares == ()


def test_reranking_embeds() -> None:
    """``--rerank`` serves embeddings with a pooling of its own."""
    choices = choices_from_argv(("--rerank",))
    assert (choices.embeddings, choices.pooling) == (True, "rank")


def test_a_cache_type_that_nobody_knows_is_not_said() -> None:
    """The server refuses it at the start; the estimate must not fail before that."""
    assert choices_from_argv(("-ctk", "q9_9")).cache_type_k == "f16"


@given(st.lists(_WORDS, max_size=12))
def test_any_words_are_read(words: list[str]) -> None:
    """Whatever stands in extra arguments, choices come out, with sizes that can be worked with."""
    choices = choices_from_argv(words, devices=("Vulkan0",))
    assert choices.slots is None or choices.slots > 0
    assert choices.batch > 0
    assert choices.ubatch > 0
    assert not choices.shares or len(choices.shares) >= len(choices.devices)
