"""What an interpreter says of itself as a build: versions, options, what MLX computes on; and the files that it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.contract import CommandOutput, DeviceListing
from engines.mlx.command import RUN

_FLAG = re.compile(r"(?<![\w<\[-])--[a-z][a-z-]*")
_PACKAGES = ("mlx-", "mlx_cpu-", "mlx_metal-", "mlx_lm-", "transformers-", "llguidance-")


def parse_version(output: CommandOutput) -> str | None:
    """``MLX 0.32.4, mlx-lm 0.32.2, Python 3.11.7``, from the one line of JSON."""
    found = _document(output)
    if found is None or "mlx" not in found:
        return None
    return f"MLX {found['mlx']}, mlx-lm {found.get('mlx-lm')}, Python {found.get('python')}"


def parse_flags(output: CommandOutput) -> frozenset[str] | None:
    """Every option that the help text lists."""
    return frozenset(_FLAG.findall(output.stdout)) or None if output.exit_code == 0 else None


def parse_devices(output: CommandOutput) -> tuple[DeviceListing, ...] | None:
    """``Metal`` on Apple silicon; nothing where MLX computes on the CPU; None where it could not be asked."""
    found = _document(output)
    if found is None or "metal" not in found:
        return None
    if not found["metal"]:
        return ()
    total = found.get("working_set_bytes") or found.get("total_bytes")
    size = total if isinstance(total, int) else None
    return (DeviceListing("Metal", str(found.get("name") or "Apple GPU"), "gpu", size, None),)


def build_files(executable: Path) -> tuple[Path, ...]:
    """What makes an interpreter this build, beside its own bytes: the packages' records, and the server's code."""
    return tuple(sorted({*_records(executable.parent.parent), *RUN.parent.glob("*.py")}))


def _records(root: Path) -> Iterator[Path]:
    for folder in (*root.glob("lib/python3*/site-packages"), *root.glob("lib/python3*/dist-packages")):
        for package in _PACKAGES:
            yield from folder.glob(f"{package}[0-9]*.dist-info/RECORD")


def _document(output: CommandOutput) -> dict[str, Any] | None:
    if output.exit_code != 0:
        return None
    try:
        document = json.loads(output.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return document if isinstance(document, dict) else None
