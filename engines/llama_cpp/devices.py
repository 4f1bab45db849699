"""What llama-server's short commands print: version, help, device listing."""

from __future__ import annotations

import re

from engines.contract import CommandOutput, DeviceListing

_MIB = 2**20
_ROW = re.compile(r"^\s+(?P<id>[^\s:]\S*?): (?P<name>.*) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$")
_HEADER = "Available devices:"
_VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)
# An option line of --help starts at column 0 or after a comma: `-t,    --threads N`, `--ui,  --webui, --no-ui`.
_HELP_LINE = re.compile(r"^-[^\n]*", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w<\[-])--?[A-Za-z][\w.-]*")
_GPU_PREFIXES = (
    "CUDA",
    "ROCm",
    "HIP",
    "Vulkan",
    "SYCL",
    "Metal",
    "MTL",
    "CANN",
    "MUSA",
    "OpenCL",
    "GPUOpenCL",
    "WebGPU",
)
_SOFTWARE_NAMES = ("llvmpipe", "lavapipe", "SwiftShader", "softpipe")


def parse_version(output: CommandOutput) -> str | None:
    """The line after ``version:``; llama-server prints it on stderr."""
    match = _VERSION.search(output.stderr) or _VERSION.search(output.stdout)
    return match[1].strip() if match else None


def parse_flags(output: CommandOutput) -> frozenset[str] | None:
    """Every option name in ``--help``; None when nothing was printed, so nothing is known."""
    flags: set[str] = set()
    for line in _HELP_LINE.findall(output.stdout):
        flags.update(_FLAG.findall(_names_of(line)))
    return frozenset(flags) or None


def _names_of(line: str) -> str:
    """The part of a help line that holds names: up to the first gap that does not follow a comma."""
    return re.split(r"(?<![,\s])\s{2,}", line, maxsplit=1)[0]


def parse_devices(output: CommandOutput) -> tuple[DeviceListing, ...] | None:
    """Rows after ``Available devices:``; a listing without exit code 0 and the header is not trusted."""
    lines = output.stdout.splitlines()
    if output.exit_code != 0 or _HEADER not in (line.strip() for line in lines):
        return None
    start = next(number for number, line in enumerate(lines) if line.strip() == _HEADER)
    rows = (_ROW.match(line) for line in lines[start + 1 :])
    return tuple(_device(row) for row in rows if row)


def _device(row: re.Match[str]) -> DeviceListing:
    total = int(row["total"]) * _MIB
    name = row["name"].strip()
    return DeviceListing(
        id=row["id"],
        name=name,
        kind=_kind(row["id"]),
        total_bytes=total,
        free_bytes=int(row["free"]) * _MIB,
        usable=total > 0,  # BLAS and Accelerate list 0 MiB: a pseudo-device without memory of its own
        software=any(software in name for software in _SOFTWARE_NAMES),
    )


def _kind(device: str) -> str:
    if device.startswith("RPC"):
        return "remote"
    if device.startswith(_GPU_PREFIXES):
        return "gpu"
    return "accel" if device in {"BLAS", "Accelerate"} else "unknown"
