"""From a plan to sd-server's arguments, and what its short commands say."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines.contract import (
    BuildFacts,
    Capability,
    CommandOutput,
    Endpoint,
    Health,
    LogSignal,
    ModelMetadata,
    PlanDraft,
    SettingsError,
)
from engines.sd_cpp import devices, health
from engines.sd_cpp.command import build_command, endpoint_args
from engines.sd_cpp.extra_args import check_extra_args
from engines.sd_cpp.settings import SdCppSettings

UNKNOWN = BuildFacts(version=None, flags=None, devices=None)
METADATA = ModelMetadata(
    format="safetensors",
    architecture="ovis-image",
    file_bytes=100,
    tensor_bytes=90,
    roles=("diffusion_model", "llm", "tae"),
)
DRAFT = PlanDraft(
    model_id="m",
    files=(Path("/m/d.safetensors"), Path("/m/l.safetensors"), Path("/m/t.safetensors")),
    metadata=METADATA,
    settings=SdCppSettings(),
    capabilities=frozenset({Capability.IMAGES}),
    threads=2,
    threads_batch=None,
    devices=None,
    n_gpu_layers=None,
    ctx_size=None,
    slots=1,
    cache_type=None,
)


def test_parts_are_said_by_role_and_weights_are_never_changed() -> None:
    """LoRAs merged into the weights leave traces in every later picture; without -1 all pictures have one seed."""
    argv = " ".join(build_command(DRAFT, UNKNOWN).argv)
    assert argv == (
        "--diffusion-model /m/d.safetensors --llm /m/l.safetensors --tae /m/t.safetensors "
        "--lora-apply-mode at_runtime --seed -1 --threads 2"
    )


def test_one_file_is_a_whole_model() -> None:
    """A checkpoint has no roles."""
    draft = replace(DRAFT, metadata=replace(METADATA, roles=()), files=(Path("/m/a.safetensors"),))
    assert build_command(draft, UNKNOWN).argv[:2] == ("--model", "/m/a.safetensors")


def test_settings_become_flags_where_the_build_knows_them() -> None:
    """What it does not list is left out, and said."""
    settings = SdCppSettings(lora_dir=Path("/loras"), flash_attention=True, vae_on_cpu=True, extra_args=("--mmap",))
    facts = BuildFacts(
        None, frozenset({"--diffusion-model", "--llm", "--tae", "--lora-model-dir", "--vae-on-cpu"}), None
    )
    made = build_command(replace(DRAFT, settings=settings), facts)
    assert made.argv[6:] == ("--lora-model-dir", "/loras", "--vae-on-cpu", "--mmap")
    assert {choice.choice for choice in made.choices if "not said" in choice.reason} >= {"--diffusion-fa", "--threads"}


@pytest.mark.parametrize(
    "argument", ["--listen-port=1", "-m", "--lora-apply-mode", "-v", "--seed", "--serve-html-path"]
)
def test_what_opens_doors_is_refused(argument: str) -> None:
    """The address, the model, and what writes clients' texts into the log are not extra_args' to say."""
    with pytest.raises(SettingsError, match="extra_args may not hold"):
        check_extra_args((argument,))


def test_it_listens_on_loopback() -> None:
    """No build known here takes a socket."""
    assert endpoint_args(Endpoint(port=1234)) == ("--listen-ip", "127.0.0.1", "--listen-port", "1234")


HELP = """[ERROR] common.cpp:1 - error: invalid parameter for argument: --help
Usage: sd-server [options]

Svr Options:
  -l, --listen-ip <string>                 server listen ip (default: 127.0.0.1)
  --listen-port <int>                      server listen port (default: 1234), not --other
Context Options:
  -m, --model <string>                     path to full model
  --clip_l <string>                        path to the clip-l text encoder
  --lora-apply-mode                        one of [auto, immediately, at_runtime], see --lora-model-dir
"""


def test_help_and_version_are_read() -> None:
    """Names are in the first column; an option that a text mentions is not one of this line."""
    flags = devices.parse_flags(CommandOutput(0, HELP, ""))
    assert set(flags or ()) == {"-l", "--listen-ip", "--listen-port", "-m", "--model", "--clip_l", "--lora-apply-mode"}
    said = CommandOutput(0, "stable-diffusion.cpp version pypi-0.4.7, commit unknown\n", "")
    assert devices.parse_version(said) == "pypi-0.4.7, commit unknown"
    assert devices.parse_version(CommandOutput(1, "", "")) is None
    assert devices.parse_flags(CommandOutput(1, "", "")) is None


def test_it_is_ready_when_it_answers() -> None:
    """There is no /health: the port opens only when the model is loaded."""
    assert health.HEALTH_PATH == "/v1/models"
    assert (health.read_health(200, b""), health.read_health(500, b"")) == (Health.READY, Health.SICK)
    assert health.read_line("[INFO ] main.cpp:148  - listening on: 127.0.0.1:18090") is LogSignal.LISTENING
    assert health.read_line("[INFO ] model.cpp:993 - loading tensors completed") is None


@pytest.mark.parametrize(("tiling", "said"), [(None, "not free"), (True, "always"), (False, "never")])
def test_the_plan_says_what_pictures_take_and_when_they_are_drawn_in_tiles(tiling: bool | None, said: str) -> None:
    """Of a large picture the network may take more than the autoencoder. Nothing of it is a flag of the engine."""
    made = build_command(replace(DRAFT, settings=SdCppSettings(vae_tiling=tiling)), UNKNOWN)
    (choice,) = (choice for choice in made.choices if choice.choice == "pictures")
    assert said in choice.reason
    assert isinstance(choice.value, dict)
    small, usual, large = choice.value.values()
    assert small["whole"] < usual["whole"] < large["whole"]
    assert small["tiles"] < small["whole"]
    assert all(taken["tiles"] <= taken["whole"] for taken in choice.value.values())
    assert "tiling" not in " ".join(made.argv)
