"""Driver versions and device kinds, which are a part of what a build's standing holds for."""

from __future__ import annotations

from pathlib import Path

from engines.contract import BuildFacts, DeviceListing
from supervisor.builds.driver import device_kind, driver_version

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16-I3)\n"


def write(root: Path, name: str, text: str) -> None:
    """A file of the tree that stands for /."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_driver(tmp_path: Path) -> None:
    """A machine without cards has a version of its own, so that the first driver is a change."""
    assert driver_version(tmp_path) == "none"


def test_nvidia(tmp_path: Path) -> None:
    """Both forms of the module's line, and the module's own file where /proc does not have it."""
    write(tmp_path, "sys/module/nvidia/version", "550.1\n")
    assert driver_version(tmp_path) == "nvidia 550.1"
    for text, version in ((PROPRIETARY, "535.183.01"), (OPEN, "560.35.03")):
        write(tmp_path, "proc/driver/nvidia/version", text)
        assert driver_version(tmp_path) == f"nvidia {version}"


def test_drivers_of_the_kernel(tmp_path: Path) -> None:
    """The version of amdgpu is its own where it was installed apart, else the kernel's; several are all named."""
    write(tmp_path, "proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert driver_version(tmp_path) == "amdgpu 6.8.0-45-generic"
    write(tmp_path, "sys/module/amdgpu/version", "6.7.0\n")
    write(tmp_path, "sys/module/nvidia/version", "550.1\n")
    assert driver_version(tmp_path) == "nvidia 550.1, amdgpu 6.7.0"


def test_device_kind() -> None:
    """By the build's own names; what it can't offload to and software devices do not count, unknown is not none."""

    def kind(*devices: DeviceListing) -> str:
        return device_kind(BuildFacts(None, None, devices))

    def row(name: str, *, usable: bool = True, software: bool = False) -> DeviceListing:
        return DeviceListing(name, name, "gpu", None, None, usable, software)

    assert kind(row("CUDA0"), row("CUDA1"), row("Vulkan0")) == "CUDA+Vulkan"
    assert kind(row("BLAS", usable=False), row("Vulkan0", software=True)) == "cpu"
    assert kind() == "cpu"
    assert device_kind(BuildFacts(None, None, None)) == "unknown"
