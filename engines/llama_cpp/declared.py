"""The lines of llama-server's log that tell what memory it takes: with ``--verbosity 4``, one a buffer.

``load_tensors:   CPU_Mapped model buffer size =    92.10 MiB`` and the like; two decimals, so 5 KiB off at most.
``using device CUDA0 (NVIDIA H200) (0000:01:00.0) - 143000 MiB free`` tells where a device is.
"""

from __future__ import annotations

import re
from typing import Literal

from engines.declared import HOST, Declared, DeclaredBuffer, DeviceAddress

_BUFFER = re.compile(r": +(\S+) +(model|KV|RS|compute|output) buffer size = +(\d+\.\d+) MiB")
_DEVICE = re.compile(r"using device (\S+) \(.*\) \(([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\) - ")
_PARTS: dict[str, Literal["weights", "kv", "compute"]] = {
    "model": "weights",
    "KV": "kv",
    "RS": "kv",
    "compute": "compute",
    "output": "compute",
}
_MAPPED = "_Mapped"
_MIB = 2**20


def read_declared(line: str) -> Declared | None:
    """What the line tells of memory; the two searches for words are all that most lines cost."""
    if " buffer size = " in line:
        found = _BUFFER.search(line)
        return None if found is None else _buffer(found)
    if "using device " in line and (device := _DEVICE.search(line)) is not None:
        return DeviceAddress(device[1], device[2])
    return None


def _buffer(found: re.Match[str]) -> DeclaredBuffer:
    name = found[1].removesuffix(_MAPPED)
    # ``CUDA_Host`` and ``Vulkan_Host`` are host memory that a device reads; ``CPU_REPACK`` is weights in another form.
    place = HOST if name.startswith("CPU") or name.endswith("_Host") else name
    return DeclaredBuffer(place, _PARTS[found[2]], round(float(found[3]) * _MIB), mapped=found[1].endswith(_MAPPED))
