"""The planner: every choice with its reason, from values alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Beside, BuildFacts, Capability, DeviceListing, LaunchPlan, ModelMetadata
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.errors import PlanError
from supervisor.host.cpu import CpuBudget
from supervisor.host.memory import MemoryBudget
from supervisor.host.pools import PoolRoom
from supervisor.host.snapshot import HostSnapshot
from supervisor.planning.planner import BuildForPlan, PlanRequest, make_plan

GIB = 2**30
HOST = HostSnapshot(
    cpu=CpuBudget(
        host_count=8,
        affinity_count=8,
        cpuset_count=None,
        quota=2.5,
        effective=2.5,
        threads=2,
        physical_count=4,
        source="cpu.max",
    ),
    memory=MemoryBudget(
        host_total_bytes=16 * GIB,
        host_available_bytes=8 * GIB,
        limit_bytes=None,
        high_bytes=None,
        available_bytes=8 * GIB,
    ),
)
METADATA = ModelMetadata(
    format="gguf",
    architecture="llama",
    file_bytes=100 * 2**20,
    tensor_bytes=96 * 2**20,
    context_length=8192,
    block_count=30,
    embedding_length=576,
    head_count=9,
    head_count_kv=(3,) * 30,
)
REQUEST = PlanRequest(
    model_id="m",
    files=(Path("/models/m.gguf"),),
    metadata=METADATA,
    capabilities=frozenset({Capability.CHAT}),
    launch=LlamaCppSettings(),
    defaults=LlamaCppSettings(),
    build=BuildForPlan("cpu", "f" * 64, Path("/opt/llama-server"), {}, BuildFacts(None, None, ()), "first in order"),
    host=HOST,
    rooms=(PoolRoom("host", 16 * GIB, 16 * GIB, "16.0 GiB in /proc/meminfo"),),
    allow_paging=False,
)
LLVMPIPE = DeviceListing("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", "gpu", 2 * GIB, 2 * GIB, software=True)
CARD = DeviceListing("CUDA0", "NVIDIA H200", "gpu", 139 * GIB, 139 * GIB)


def plan(request: PlanRequest) -> LaunchPlan:
    """The plan for llama.cpp."""
    return make_plan(request, LlamaCppAdapter())


def reason(made: LaunchPlan, choice: str) -> str:
    """Why a choice was made."""
    return next(row.reason for row in made.rationale if row.choice == choice)


def test_a_quota_makes_the_threads() -> None:
    """2.5 CPUs are two threads, and the reason names the file."""
    made = plan(REQUEST)
    assert made.threads == 2
    assert "cpu.max" in reason(made, "threads")


def test_the_predicted_kv_is_the_one_measured() -> None:
    """SmolLM2 takes 22.5 KiB a token in f16: 8192 tokens for each of two slots."""
    made = plan(REQUEST)
    assert (made.ctx_size, made.slots) == (8192, 2)
    assert made.memory["host"].kv == round(22.5 * 1024 * 8192 * 2)


def test_wishes_stand_and_name_their_place() -> None:
    """The model's own word goes over the engine's defaults, and the rationale tells which it was."""
    request = replace(
        REQUEST, launch=LlamaCppSettings(ctx_size=2048), defaults=LlamaCppSettings(ctx_size=1024, slots=3)
    )
    made = plan(request)
    assert (made.ctx_size, made.slots) == (2048, 3)
    assert reason(made, "ctx_size") == "from launch.ctx_size"
    assert "defaults" in reason(made, "slots")


def test_more_context_than_trained_stands_and_is_said() -> None:
    """An explicit number is not clamped; the reason says what it costs."""
    made = plan(replace(REQUEST, launch=LlamaCppSettings(ctx_size=32768)))
    assert made.ctx_size == 32768
    assert "trained on 8192" in reason(made, "ctx_size")


def test_too_many_threads_stand_and_warn() -> None:
    """An explicit number above the budget is passed, with a warning."""
    made = plan(replace(REQUEST, launch=LlamaCppSettings(threads=16)))
    assert made.threads == 16
    assert made.warnings


def test_software_devices_are_turned_off() -> None:
    """A build that lists only llvmpipe gets no device, unless the model names it."""
    build = replace(REQUEST.build, facts=BuildFacts(None, None, (LLVMPIPE,)))
    made = plan(replace(REQUEST, build=build))
    assert made.argv[made.argv.index("--device") + 1] == "none"
    assert made.n_gpu_layers == 0
    wished = LlamaCppSettings(devices=("Vulkan0",), n_gpu_layers=10)
    made = plan(replace(REQUEST, build=build, launch=wished))
    assert made.argv[made.argv.index("--device") + 1] == "Vulkan0"
    assert made.n_gpu_layers == 10


def test_a_real_card_gets_all_layers() -> None:
    """With a hardware device and no wish, the plan decides: device and layers are said, and the engine's fit is off."""
    made = plan(replace(REQUEST, build=replace(REQUEST.build, facts=BuildFacts(None, None, (CARD, LLVMPIPE)))))
    argv = made.argv
    assert argv[argv.index("--device") + 1] == "CUDA0"
    assert argv[argv.index("--n-gpu-layers") + 1] == "31"
    assert argv[argv.index("--fit") + 1] == "off"
    assert "CUDA0 (NVIDIA H200)" in reason(made, "devices")


def test_a_device_that_the_build_does_not_list_is_refused() -> None:
    """The engine would end at once; the owner hears which names there are."""
    build = replace(REQUEST.build, facts=BuildFacts(None, None, (CARD,)))
    with pytest.raises(PlanError, match=r"names CUDA7.*lists CUDA0") as caught:
        plan(replace(REQUEST, build=build, launch=LlamaCppSettings(devices=("CUDA7",))))
    assert caught.value.code == "setting_refused"


def test_what_does_not_fit_says_the_numbers() -> None:
    """Weights and KV beyond the host's memory do not fit, unless paging is allowed; unknown memory is not compared."""
    little = (PoolRoom("host", 200 * 2**20, 16 * GIB, "host.memory 1.2 GiB - reserve 1.0 GiB"),)
    made = plan(replace(REQUEST, rooms=little))
    assert not made.fits
    assert "of 200.0 MiB" in reason(made, "memory")
    assert "host.memory 1.2 GiB" in reason(made, "memory")
    host = made.memory["host"]
    anonymous = (host.anonymous or 0) + (host.upper or 0)
    enough = (PoolRoom("host", anonymous, 16 * GIB, "set"),)
    assert not plan(replace(REQUEST, rooms=enough)).fits
    assert plan(replace(REQUEST, rooms=enough, allow_paging=True)).fits
    assert plan(replace(REQUEST, rooms=(PoolRoom("host", None, None, "no file says"),))).fits


@settings(deadline=None)
@given(
    ctx=st.one_of(st.none(), st.integers(8, 10**6)),
    slots=st.one_of(st.none(), st.integers(1, 64)),
    threads=st.one_of(st.none(), st.integers(1, 512)),
    trained=st.one_of(st.none(), st.integers(1, 10**7)),
)
def test_every_choice_has_a_reason(
    ctx: int | None, slots: int | None, threads: int | None, trained: int | None
) -> None:
    """Whatever is wished: a plan comes out, wishes stand unclamped, nothing is chosen without a reason."""
    launch = LlamaCppSettings(ctx_size=ctx, slots=slots, threads=threads)
    made = plan(replace(REQUEST, launch=launch, metadata=replace(METADATA, context_length=trained)))
    assert all(row.reason for row in made.rationale)
    assert ctx in {None, made.ctx_size}
    assert slots in {None, made.slots}
    assert threads in {None, made.threads}


def test_a_door_that_the_settings_open_is_no_plan() -> None:
    """Settings are checked where they are read; the command refuses them all the same."""
    with pytest.raises(ValueError, match="extra_args may not hold --tools"):
        LlamaCppSettings(extra_args=("--tools", "all"))


def test_extra_arguments_that_place_layers_stand() -> None:
    """A user who says the devices' flags has the last word: the plan names none, and predicts by those flags."""
    build = replace(REQUEST.build, facts=BuildFacts(None, None, (CARD,)))
    launch = LlamaCppSettings(extra_args=("-ngl", "5", "--mmproj", "/models/eyes.gguf"))
    made = plan(replace(REQUEST, build=build, launch=launch))
    assert "--device" not in made.argv
    assert "--n-gpu-layers" not in made.argv
    assert made.n_gpu_layers is None
    assert "extra_args" in reason(made, "devices")
    assert "not in the memory predicted" in reason(made, "--mmproj")


def test_what_runs_beside_takes_threads_and_no_slots() -> None:
    """Prevents: a model serves fewer requests at once for as long as it runs, because another ran when it started."""
    alone, shared = plan(REQUEST), plan(replace(REQUEST, beside=Beside(cpu_resident=1)))

    assert (alone.threads, shared.threads) == (2, 1)
    assert alone.slots == shared.slots == 2
    assert shared.beside == Beside(cpu_resident=1)
