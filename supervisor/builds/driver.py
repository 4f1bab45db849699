"""The versions of the drivers under a build: what sets it aside on the host's account holds until they change."""

from __future__ import annotations

import re
from pathlib import Path

from engines.contract import BuildFacts

NO_DRIVER = "none"
_NVIDIA_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(?P<version>\d[\w.]*)")
# Drivers that are part of the kernel have its version; those that are not say their own.
_KERNEL_DRIVERS = ("amdgpu", "i915", "xe")


def driver_version(root: Path = Path("/")) -> str:
    """Such as ``nvidia 560.35.03``; several are joined, ``none`` without any. Reads a few small files of the kernel."""
    found = [version for version in (_nvidia(root), *(_kernel(root, name) for name in _KERNEL_DRIVERS)) if version]
    return ", ".join(found) or NO_DRIVER


def device_kind(facts: BuildFacts) -> str:
    """The kinds of device that a build offloads to, by its own names (``CUDA``, ``Vulkan``); ``cpu`` without any."""
    if facts.devices is None:
        return "unknown"
    kinds = {device.id.rstrip("0123456789") for device in facts.devices if device.usable and not device.software}
    return "+".join(sorted(kinds)) or "cpu"


def _nvidia(root: Path) -> str | None:
    text = _read(root / "proc/driver/nvidia/version")
    match = _NVIDIA_VERSION.search(text) if text else None
    version = match["version"] if match else _read(root / "sys/module/nvidia/version")
    return f"nvidia {version}" if version else None


def _kernel(root: Path, name: str) -> str | None:
    module = root / "sys/module" / name
    if not module.is_dir():
        return None
    return f"{name} {_read(module / 'version') or _read(root / 'proc/sys/kernel/osrelease') or 'unknown'}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
