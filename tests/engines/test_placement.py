"""Plans on a real device, the software one of Mesa: the engine loads by them, and takes no more than was planned.

The device is listed twice, so that a split can be tested; rooms are what each test says they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.contract import BuildFacts, EngineKind, LaunchPlan
from engines.formats.gguf import read_metadata
from engines.llama_cpp.settings import LlamaCppSettings
from engines.registry import adapter_for
from supervisor.host.pools import PoolRoom
from supervisor.host.snapshot import take_snapshot
from supervisor.planning.planner import BuildForPlan, PlanRequest, make_plan
from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.memory_rows import recorded_headers
from tests.support.real_engine import SOFTWARE_TWICE, Loading, loading, software_vulkan
from tests.support.recorded_models import write_model
from tests.support.sockets import short_socket_folder
from tests.wire.asking import ask, instance

__all__ = ["software_vulkan"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

_MIB = 2**20
_BOTH = ("Vulkan0", "Vulkan1")
_SETTINGS: Mapping[str, Any] = {"ctx_size": 2048, "slots": 1, "warmup": False, "threads": 1}
# The log has two decimals, of each buffer.
_ROUNDED = 0.1
# One compute buffer of the 69 on two devices is a tenth off: which device a split graph's copies count for.
_SPLIT_OFF = 0.1
# Few of them, small and unlike each other; the slow tests take all.
_ARCHITECTURES = ("gemma3", "mamba2", "bert", "lfm2")
_ALL = sorted({str(header["kv"]["general.architecture"]) for header in recorded_headers().values()})


def _toy(architecture: str, folder: Path) -> Path:
    headers = (header for header in recorded_headers().values() if header["kv"]["general.file_type"] == 1)
    header = next(header for header in headers if header["kv"]["general.architecture"] == architecture)
    return write_model(header, folder)[0]


def _plan(engine: DemoEngine, facts: BuildFacts, model: Path, rooms: Mapping[str, int], **launch: Any) -> LaunchPlan:
    """A plan on the real build; ``rooms`` in MiB by device."""
    adapter = adapter_for(EngineKind.LLAMA_CPP)
    metadata = read_metadata((model,))
    request = PlanRequest(
        model_id="m",
        files=(model,),
        metadata=metadata,
        capabilities=adapter.capabilities(metadata),
        launch=LlamaCppSettings(**{**_SETTINGS, **launch}),
        defaults=LlamaCppSettings(),
        build=BuildForPlan("demo", "f", engine.executable, engine.env, facts, "the only one"),
        host=take_snapshot(Path("/")),
        rooms=(
            PoolRoom("host", 4096 * _MIB, None, "set by a test"),
            *(PoolRoom(f"gpu-{name}", size * _MIB, None, "set by a test", (name,)) for name, size in rooms.items()),
        ),
        allow_paging=False,
    )
    return make_plan(request, adapter)


def _load(engine: DemoEngine, plan: LaunchPlan, within: float = 0.0) -> Loading:
    """The engine with the plan's own arguments, up to the end of loading.

    What it declares for a device is what the plan says, or ``within`` a share of it.
    """
    with short_socket_folder() as folder:
        argv = [str(plan.executable), *plan.argv, "--host", str(folder / "e.sock")]
        with loading(argv, {**engine.env, **SOFTWARE_TWICE}) as seen:
            assert seen.loaded, "\n".join(seen.lines[-20:])
    for device in plan.devices or ():
        predicted = (plan.memory[f"gpu-{device}"].total or 0) / _MIB
        assert seen.mebibytes(device) == pytest.approx(predicted, rel=within, abs=_ROUNDED)
    return seen


def test_all_layers_go_on_a_device_with_room(
    demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path
) -> None:
    """The plan says how many there are, and the engine puts them there."""
    plan = _plan(demo_engine, software_vulkan, _toy("olmo2", tmp_path), {"Vulkan0": 1024}, devices=("Vulkan0",))
    assert (plan.fits, plan.n_gpu_layers, plan.degraded) == (True, 9, ())
    assert _load(demo_engine, plan).layers == (9, 9)


def test_a_small_room_gets_a_part_of_the_layers(
    demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path
) -> None:
    """As many as fit, one more would not, and the rest stays on the host."""
    model = _toy("olmo2", tmp_path)
    launch: Mapping[str, Any] = {"devices": ("Vulkan0",), "cache_type": "f16"}
    plan = _plan(demo_engine, software_vulkan, model, {"Vulkan0": 50}, **launch)
    layers = plan.n_gpu_layers or 0
    assert (plan.fits, plan.degraded) == (True, ("n_gpu_layers",))
    assert 2 <= layers < 9
    more = _plan(demo_engine, software_vulkan, model, {"Vulkan0": 50}, **launch, n_gpu_layers=layers + 1)
    assert not more.fits
    assert _load(demo_engine, plan).layers == (layers, 9)


def test_two_devices_share_the_layers(demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path) -> None:
    """By their rooms, in whole layers: the engine parts them as the plan counted."""
    plan = _plan(demo_engine, software_vulkan, _toy("olmo2", tmp_path), {"Vulkan0": 200, "Vulkan1": 100}, devices=_BOTH)
    assert (plan.fits, plan.n_gpu_layers, plan.tensor_split) == (True, 9, (6, 3))
    assert _load(demo_engine, plan).layers == (9, 9)


def test_experts_stay_on_the_host(demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path) -> None:
    """A mixture whose experts are too large for the device: the first layers' leave it, and no layer does."""
    model = _toy("qwen3moe", tmp_path)
    whole = _plan(demo_engine, software_vulkan, model, {"Vulkan0": 1024}, devices=("Vulkan0",))
    room = ((whole.memory["gpu-Vulkan0"].total or 0) * 3 // 4) // _MIB
    plan = _plan(demo_engine, software_vulkan, model, {"Vulkan0": room}, devices=("Vulkan0",), cache_type="f16")
    assert (plan.fits, plan.degraded) == (True, ("experts_to_cpu",))
    seen = _load(demo_engine, plan)
    assert seen.layers is not None
    assert seen.layers[0] == seen.layers[1]


def test_too_small_a_room_is_refused_or_left(
    demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path
) -> None:
    """A device by name is the user's word, so it does not fit; a device of our own choice is left for the CPU."""
    model = _toy("llama", tmp_path)
    named = _plan(demo_engine, software_vulkan, model, {"Vulkan0": 4}, devices=("Vulkan0",))
    assert not named.fits
    assert named.attempts
    card = replace((software_vulkan.devices or ())[0], software=False)
    plan = _plan(demo_engine, replace(software_vulkan, devices=(card,)), model, {"Vulkan0": 4})
    assert (plan.fits, plan.degraded, plan.n_gpu_layers) == (True, ("cpu",), 0)
    assert _load(demo_engine, plan).mebibytes("Vulkan0") == 0


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_other_networks_load_by_their_plan(
    architecture: str, demo_engine: DemoEngine, software_vulkan: BuildFacts, tmp_path: Path
) -> None:
    """On the host, by what the plan says; the rest of the architectures are slow."""
    plan = _plan(demo_engine, software_vulkan, _toy(architecture, tmp_path), {})
    assert plan.fits
    assert _load(demo_engine, plan).loaded


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("Vulkan0",), _BOTH], ids=["one", "two"])
@pytest.mark.parametrize("architecture", _ALL)
def test_every_network_loads_by_its_plan(
    architecture: str,
    devices: tuple[str, ...],
    demo_engine: DemoEngine,
    software_vulkan: BuildFacts,
    tmp_path: Path,
) -> None:
    """With all layers on one device or on two, and then with half the room that they need."""
    model = _toy(architecture, tmp_path)
    whole = _plan(demo_engine, software_vulkan, model, dict.fromkeys(devices, 1024), devices=devices)
    assert whole.fits
    _load(demo_engine, whole, _SPLIT_OFF)
    needed = max((part.total or 0) for pool, part in whole.memory.items() if pool != "host")
    rooms = dict.fromkeys(devices, max(1, needed // 2 // _MIB))
    half = _plan(demo_engine, software_vulkan, model, rooms, devices=devices)
    if half.fits:
        _load(demo_engine, half, _SPLIT_OFF)


def test_the_daemon_offloads_ten_layers(
    demo_engine: DemoEngine, demo_model: Path, software_vulkan: BuildFacts, tmp_path: Path
) -> None:
    """A device by name and a number of layers stand, and the model becomes ready."""
    assert software_vulkan.devices
    launch = {"devices": ["Vulkan0"], "n_gpu_layers": 10, "warmup": False, "ctx_size": 1024, "slots": 1, "threads": 1}
    build = {**demo_engine.as_config(), "env": {**demo_engine.env, "GGML_VK_VISIBLE_DEVICES": "0"}}
    config = daemon_config(build, models={"m": {"file": str(demo_model), "serves": ["chat"], "launch": launch}})
    with running_daemon_sync(tmp_path, config) as daemon:
        assert ask(daemon, "/admin/v1/models/m/load", b"").status == 200
        plan = instance(daemon, "m")["plan"]
        assert (plan["n_gpu_layers"], plan["devices"], plan["fits"]) == (10, ["Vulkan0"], True)
