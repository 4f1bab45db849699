"""From a plan to llama-server's arguments."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines.contract import BuildFacts, Capability, Endpoint, ModelMetadata, PlanDraft, SettingsError
from engines.llama_cpp.command import build_command, endpoint_args
from engines.llama_cpp.extra_args import check_extra_args, own_threads
from engines.llama_cpp.settings import LlamaCppSettings

UNKNOWN = BuildFacts(version=None, flags=None, devices=None)
METADATA = ModelMetadata(format="gguf", architecture="llama", file_bytes=100, tensor_bytes=90)
DRAFT = PlanDraft(
    model_id="m",
    files=(Path("/models/m.gguf"),),
    metadata=METADATA,
    settings=LlamaCppSettings(),
    capabilities=frozenset({Capability.CHAT}),
    threads=2,
    threads_batch=4,
    devices=None,
    n_gpu_layers=None,
    ctx_size=4096,
    slots=3,
    cache_type="f16",
)


def value_of(argv: tuple[str, ...], flag: str) -> str:
    """The word after ``flag``."""
    return argv[argv.index(flag) + 1]


def test_the_plan_is_said_in_long_options() -> None:
    """Context is what one request gets times slots; waiting threads are slots + 8; the rest is always said."""
    argv = build_command(DRAFT, UNKNOWN).argv
    assert value_of(argv, "--model") == "/models/m.gguf"
    assert value_of(argv, "--alias") == "m"
    assert value_of(argv, "--ctx-size") == "12288"
    assert value_of(argv, "--parallel") == "3"
    assert value_of(argv, "--threads") == "2"
    assert value_of(argv, "--threads-batch") == "4"
    assert value_of(argv, "--threads-http") == "11"
    assert value_of(argv, "--batch-size") == "256"
    assert value_of(argv, "--fit") == "off"
    assert value_of(argv, "--cache-ram") == "256"
    assert {"--no-kv-unified", "--offline", "--jinja"} <= set(argv)
    assert "--n-gpu-layers" not in argv


def test_a_shared_pool_is_ctx_size_for_all() -> None:
    """With kv_unified, all slots share one pool of ctx_size."""
    argv = build_command(replace(DRAFT, settings=LlamaCppSettings(kv_unified=True)), UNKNOWN).argv
    assert value_of(argv, "--ctx-size") == "4096"
    assert "--kv-unified" in argv


@pytest.mark.parametrize(
    ("cache_type", "devices", "flags", "said"),
    [
        ("q8_0", ("Vulkan0",), None, True),
        ("q8_0", None, frozenset({"--flash-attn", "--fit", "--cache-type-v"}), True),
        ("q8_0", ("Vulkan0",), frozenset({"--flash-attn", "--cache-type-v"}), False),
        ("q8_0", (), None, False),
        ("f16", ("Vulkan0",), None, False),
    ],
)
def test_a_quantised_cache_beside_a_device_forces_flash_attention(
    cache_type: str, devices: tuple[str, ...] | None, flags: frozenset[str] | None, *, said: bool
) -> None:
    """Prevents a load that fails: left to itself, llama.cpp gives it up where a layer lies elsewhere, and then ends."""
    draft = replace(DRAFT, cache_type=cache_type, devices=devices)
    argv = build_command(draft, replace(UNKNOWN, flags=flags)).argv
    assert ("--flash-attn" in argv) is said
    assert not said or value_of(argv, "--flash-attn") == "on"


def test_a_flag_that_the_build_lacks_is_left_out_and_said() -> None:
    """An unknown flag would end the start: it is not passed, and the rationale says so."""
    known = frozenset({"--model", "--alias", "--ctx-size", "--parallel", "--threads"})
    command = build_command(DRAFT, replace(UNKNOWN, flags=known))
    assert {word for word in command.argv if word.startswith("--")} == known
    unsaid = {choice.choice for choice in command.choices if choice.reason.startswith("not said")}
    assert "--offline" in unsaid
    assert "--cache-ram" in unsaid


def test_chat_and_embeddings_are_served_by_one_model() -> None:
    """A chat model without a pooling of its own embeds by the mean, in batches that hold an input whole."""
    both = frozenset({Capability.CHAT, Capability.EMBEDDINGS})
    argv = build_command(replace(DRAFT, capabilities=both), UNKNOWN).argv
    assert value_of(argv, "--pooling") == "mean"
    assert value_of(argv, "--batch-size") == value_of(argv, "--ubatch-size") == "512"


def test_what_a_batch_of_a_large_vocabulary_costs_is_said() -> None:
    """An owner would wonder where 2 GiB of a model of 500 MiB come from."""
    for vocabulary, told in ((250_000, True), (30_000, False)):
        metadata = replace(METADATA, vocabulary_size=vocabulary, pooling="cls")
        draft = replace(DRAFT, metadata=metadata, capabilities=frozenset({Capability.EMBEDDINGS}))
        reasons = {choice.choice: choice.reason for choice in build_command(draft, UNKNOWN).choices}
        assert ("1953 MiB of logits" in reasons["batch-size"]) is told


def test_what_embeds_shares_one_kv_of_the_whole_size() -> None:
    """Prevents wrong vectors for texts of unlike lengths that are embedded together; each request keeps its context."""
    draft = replace(DRAFT, capabilities=frozenset({Capability.EMBEDDINGS}))
    argv = build_command(draft, UNKNOWN).argv
    assert "--kv-unified" in argv
    assert "--no-kv-unified" not in argv
    assert value_of(argv, "--ctx-size") == "12288"
    assert "--no-kv-unified" in build_command(replace(draft, slots=1), UNKNOWN).argv


def test_extra_arguments_come_last_and_take_flags_over() -> None:
    """What the user says by extra_args is not said twice, and the rationale tells."""
    settings = LlamaCppSettings(extra_args=("--cache-ram=0", "--threads", "8"))
    command = build_command(replace(DRAFT, settings=settings), UNKNOWN)
    assert command.argv[-3:] == ("--cache-ram=0", "--threads", "8")
    assert command.argv.count("--threads") == 1
    assert "--cache-ram" not in command.argv
    assert [choice.reason for choice in command.choices if choice.choice == "--cache-ram"] == ["left to extra_args"]


@pytest.mark.parametrize(
    "argument",
    [
        "--tools",
        "--mcp-servers-json={}",
        "--host",
        "--api-key=x",
        "-hf",
        "--media-path",
        "--gpt-oss-20b-default",
        "--rpc",
        "--media_path",
        "--api_key=x",
    ],
)
def test_an_extra_argument_that_opens_a_door_is_refused(argument: str) -> None:
    """Files, other machines, tools for the model, the address and secrets are not for extra_args."""
    with pytest.raises(SettingsError, match="extra_args may not hold"):
        check_extra_args((argument, "x"))
    with pytest.raises(ValueError, match="extra_args may not hold"):
        LlamaCppSettings(extra_args=(argument, "x"))


@pytest.mark.parametrize(
    ("extra", "own"),
    [
        (("-t", "8"), True),
        (("--threads=8",), True),
        (("--threads-batch", "8"), False),
        (("-tb", "8"), False),
        ((), False),
    ],
)
def test_extra_arguments_may_own_the_threads(extra: tuple[str, ...], own: bool) -> None:
    """`-t`, `--threads` and `--threads=8` own the thread count; the batch's flag does not."""
    assert own_threads(extra) is own


def test_the_endpoint_is_a_socket_or_loopback() -> None:
    """A socket path is given as the host."""
    assert endpoint_args(Endpoint(socket_path=Path("/run/x.sock"))) == ("--host", "/run/x.sock")
    assert endpoint_args(Endpoint(port=4242)) == ("--host", "127.0.0.1", "--port", "4242")
