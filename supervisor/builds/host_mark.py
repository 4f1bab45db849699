"""A mark of what a device listing depends on beside the build: when it changes, builds are asked again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

# Device nodes come and go with cards and with what a container was given; versions change with drivers.
_LISTINGS = ("dev/dri", "dev/nvidia*", "dev/kfd", "etc/vulkan/icd.d", "usr/share/vulkan/icd.d")
_CONTENTS = ("proc/sys/kernel/random/boot_id", "proc/driver/nvidia/version", "sys/module/amdgpu/version")


def host_mark(root: Path = Path("/")) -> str:
    """A short hash over device nodes, driver versions and the boot; reads a handful of small files."""
    whole = hashlib.sha256("\n".join((*_names(root), *_texts(root))).encode(errors="surrogateescape"))
    return whole.hexdigest()[:16]


def _names(root: Path) -> Iterator[str]:
    for pattern in _LISTINGS:
        for path in sorted(root.glob(pattern)):
            yield str(path.relative_to(root))
            if path.is_dir():
                yield from sorted(entry.name for entry in path.glob("*"))


def _texts(root: Path) -> Iterator[str]:
    for name in _CONTENTS:
        try:
            yield (root / name).read_text(errors="replace").strip()
        except OSError:
            yield ""
