"""A real engine that loads one model by a plan: what the build says of itself, and what the log declares."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engines.contract import BuildFacts, CommandOutput, EngineKind
from engines.registry import adapter_for
from tests.support.demo import DemoEngine

SOFTWARE_TWICE = {"GGML_VK_VISIBLE_DEVICES": "0,0"}
"""The first Vulkan device, listed as two: ``Vulkan0`` and ``Vulkan1``."""

_BUFFER = re.compile(r"(\w+): +(\S+) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers")
_NAMES = {"model": "weights", "KV": "kv", "RS": "recurrent"}
_MIB = 2**20


@dataclass(slots=True)
class Loading:
    """What an engine said while it loaded.

    Attributes:
        declared: MiB by place (``host``, or a device's name) and buffer.
        layers: on devices, and in all; None where none were.
        lines: the whole log.
        loaded: it got to the end, or as far as was waited for.
        until: a log line that holds this text is that end.
    """

    pid: int = 0
    declared: Counter[tuple[str, str]] = field(default_factory=Counter)
    layers: tuple[int, int] | None = None
    lines: list[str] = field(default_factory=list)
    loaded: bool = False
    until: str = "model loaded"

    def read(self, line: str) -> None:
        """One line of the log."""
        self.lines.append(line)
        if match := _BUFFER.search(line):
            on_host = match[2].startswith("CPU") or match[2].endswith("_Host")
            buffer = "repacked" if match[2] == "CPU_REPACK" else _NAMES.get(match[3], match[3])
            self.declared["host" if on_host else match[2], buffer] += float(match[4])  # type: ignore[assignment]  # MiB
        elif match := _OFFLOADED.search(line):
            self.layers = int(match[1]), int(match[2])
        self.loaded = self.loaded or self.until in line

    def mebibytes(self, place: str) -> float:
        """All that was declared there."""
        return sum(size for (name, _), size in self.declared.items() if name == place)


def facts_of(executable: Path, env: Mapping[str, str]) -> BuildFacts:
    """Version, flags and devices, as the daemon would ask for them."""
    adapter = adapter_for(EngineKind.LLAMA_CPP)
    outputs = []
    for arguments in (adapter.version_args, adapter.help_args, adapter.devices_args):
        command = [str(executable), *arguments]
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False, timeout=60)
        outputs.append(CommandOutput(done.returncode, done.stdout, done.stderr))
    version, flags, devices = outputs
    return BuildFacts(adapter.parse_version(version), adapter.parse_flags(flags), adapter.parse_devices(devices))


@contextmanager
def loading(argv: Sequence[str], env: Mapping[str, str], until: str = "model loaded") -> Iterator[Loading]:
    """Run the engine until a line holds ``until``, or it ended; it is killed afterwards."""
    process = subprocess.Popen(
        [*argv, "-lv", "4"],
        env={"PATH": os.environ["PATH"], **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    seen = Loading(pid=process.pid, until=until)
    assert process.stdout is not None
    with process.stdout:
        try:
            for line in process.stdout:
                seen.read(line.rstrip())
                if seen.loaded:
                    break
            yield seen
        finally:
            process.kill()
            process.wait(20)


@pytest.fixture(scope="session")
def software_vulkan(demo_engine: DemoEngine) -> BuildFacts:
    """The packaged build, listing one software Vulkan device as two; skips where its driver is not installed."""
    facts = facts_of(demo_engine.executable, {**demo_engine.env, **SOFTWARE_TWICE})
    if not any(device.software for device in facts.devices or ()):
        pytest.skip("no software Vulkan device here: it comes with mesa-vulkan-drivers")
    return facts
