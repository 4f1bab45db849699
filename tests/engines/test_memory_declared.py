"""What the real engine declares of its buffers, against what was predicted from the same command line.

Models are rebuilt from recorded headers, without weights: they load, and declare what the recorded ones did.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from engines.contract import BuildFacts, CommandOutput, EngineKind
from engines.formats.gguf import read_metadata
from engines.llama_cpp.memory import build_number
from engines.llama_cpp.memory_argv import choices_from_argv
from engines.llama_cpp.memory_model import model_shape
from engines.llama_cpp.memory_plan import memory_table
from engines.registry import adapter_for
from tests.support.demo import DemoEngine
from tests.support.memory_rows import predicted_of_row, recorded_headers
from tests.support.recorded_models import write_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

_BUFFER = re.compile(r"(\w+): +(\S+) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_NAMES = {"model": "weights", "KV": "kv", "RS": "recurrent"}
_MIB = 2**20
_ROUNDED = 0.011  # the log has two decimals, of each buffer
_CPU = ("llama", "gemma3", "qwen3moe", "deepseek2", "mamba2", "lfm2")
_PARTED = ("llama", "gpt2")
_COMMON = ("-lv", "4", "--fit", "off", "--no-warmup", "-t", "1")


def _model(architecture: str, folder: Path) -> Path:
    headers = (header for header in recorded_headers().values() if header["kv"]["general.file_type"] == 1)
    header = next(header for header in headers if header["kv"]["general.architecture"] == architecture)
    return write_model(header, folder)[0]


def _facts(engine: DemoEngine) -> BuildFacts:
    adapter = adapter_for(EngineKind.LLAMA_CPP)
    outputs = []
    for arguments in (adapter.version_args, adapter.help_args):
        done = subprocess.run(
            [engine.executable, *arguments],
            env=dict(engine.env),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        outputs.append(CommandOutput(0, done.stdout, done.stderr))
    return BuildFacts(adapter.parse_version(outputs[0]), adapter.parse_flags(outputs[1]), None)


def _declared(engine: DemoEngine, argv: Sequence[str], env: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """MiB by place and buffer, from the log up to the end of loading."""
    found: Counter[tuple[str, str]] = Counter()
    process = subprocess.Popen(
        [engine.executable, *argv],
        env={**engine.env, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with closing(process.stdout) as lines:
        try:
            for line in _until_loaded(lines):
                if match := _BUFFER.search(line):
                    place = "host" if match[2].startswith("CPU") or match[2].endswith("_Host") else match[2]
                    buffer = "repacked" if match[2] == "CPU_REPACK" else _NAMES.get(match[3], match[3])
                    found[place, buffer] += float(match[4])  # type: ignore[assignment]  # a Counter of MiB
        finally:
            process.kill()
            process.wait(10)
    return dict(found)


def _until_loaded(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if "model loaded" in line:
            return


def _compare(engine: DemoEngine, model: Path, argv: Sequence[str], env: Mapping[str, str]) -> None:
    shape = model_shape(read_metadata((model,)))
    assert shape is not None
    table = memory_table(shape, choices_from_argv(argv, build_number=build_number(_facts(engine))))
    predicted = {key: (size or 0) / _MIB for key, size in predicted_of_row(table).items()}
    socket = str(model.with_suffix(".sock"))
    declared = _declared(engine, ["-m", str(model), *argv, *_COMMON, "--host", socket], env)
    assert declared.keys() == predicted.keys()
    assert {key: declared[key] - size for key, size in predicted.items()} == pytest.approx(
        dict.fromkeys(predicted, 0), abs=2 * _ROUNDED
    )


@pytest.mark.parametrize("architecture", _CPU)
def test_buffers_on_the_cpu_are_as_predicted(architecture: str, demo_engine: DemoEngine, tmp_path: Path) -> None:
    """Two slots with a cache each: weights, caches, states, outputs and compute buffers."""
    argv = ("-c", "2048", "-np", "2", "-no-kvu", "-ub", "128", "-dev", "none")
    _compare(demo_engine, _model(architecture, tmp_path), argv, {})


def test_the_demo_model_takes_what_is_predicted(demo_engine: DemoEngine, demo_model: Path, tmp_path: Path) -> None:
    """A real model, with quantised caches that its slots share."""
    model = tmp_path / "m.gguf"
    model.symlink_to(demo_model)
    argv = ("-c", "4096", "-np", "2", "-kvu", "-ctk", "q8_0", "-ctv", "q8_0", "-dev", "none")
    _compare(demo_engine, model, argv, {})


@pytest.mark.parametrize("architecture", _PARTED)
def test_layers_parted_between_device_and_host_are_as_predicted(
    architecture: str, demo_engine: DemoEngine, tmp_path: Path
) -> None:
    """A few layers on a software device: what is copied over is in its compute buffer."""
    env = {"GGML_VK_VISIBLE_DEVICES": "0"}
    listed = subprocess.run(
        [demo_engine.executable, "--list-devices"],
        env={**demo_engine.env, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "Vulkan0: llvmpipe" not in listed.stdout + listed.stderr:
        pytest.skip("no software Vulkan device here: it comes with mesa-vulkan-drivers")
    argv = ("-c", "2048", "-np", "1", "-ub", "128", "-ngl", "5", "-dev", "Vulkan0")
    _compare(demo_engine, _model(architecture, tmp_path), argv, env)
