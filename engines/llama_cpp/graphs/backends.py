"""What a backend can compute, how it aligns, and when it takes over work whose weights lie on the host.

Facts from llama.cpp: each backend's ``supports_op``, ``offload_op`` and buffer types. A device is known by its name's
prefix (``CUDA0``, ``Vulkan1`` …); of a backend that is not listed here the common case is assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.llama_cpp.graphs.tensors import VIEWS, Tensor, row_bytes

_NAME = re.compile(r"([A-Za-z]+)")
# A device takes over an operation of this many rows, though its weights lie on the host.
OFFLOAD_ROWS = 32
_LIKE_CUDA = frozenset({"CUDA", "ROCm", "MUSA"})
_PLAIN_TYPES = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})
_ROW = 512
_ALIGNMENTS = {"CUDA": 128, "ROCm": 128, "MUSA": 128, "Vulkan": 16}
_ALWAYS = VIEWS | {"NONE"}
_SSM_STATES = {"Vulkan": (128, 256)}
_NO_WEIGHT_TYPES = frozenset({"TQ1_0", "Q8_1", "Q8_K", "I8", "I16", "I64", "F64"})
_STORED_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"})


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend of a scheduler.

    Attributes:
        family: ``CPU``, ``Vulkan``, ``CUDA`` …
        alignment: of blocks in its compute buffer, in bytes.
        extra: bytes that its buffers get on top.
    """

    family: str
    alignment: int
    extra: int = 0

    def allotted(self, tensor: Tensor) -> int:
        """Bytes that its buffers give a tensor; CUDA and its kin pad quantised rows, and unpack caches beside it."""
        if self.family not in _LIKE_CUDA:
            return tensor.size
        size = tensor.size + row_padding(self.family, tensor.type_name, tensor.ne[0])
        if tensor.op == "FLASH_ATTN_EXT":
            size += sum(side.elements * 2 for side in tensor.srcs[1:3] if side.type_name != "F16")
        return size

    def runs(self, node: Tensor) -> bool:
        """Whether it has this operation for these types."""
        if self.family == "CPU" or node.op in _ALWAYS:
            return True
        if node.op in {"MUL_MAT", "MUL_MAT_ID", "GET_ROWS"}:
            if self.family == "Vulkan" and node.op == "MUL_MAT" and node.srcs[0].ne[3] != node.srcs[1].ne[3]:
                return False
            return node.srcs[0].type_name not in _NO_WEIGHT_TYPES
        if node.op == "SET_ROWS":
            return node.type_name in _STORED_TYPES
        if node.op == "SSM_SCAN":
            return self.scans_states(node.srcs[0].ne[0], per_head=node.srcs[3].ne[0] == 1)
        return True

    def scans_states(self, state_size: int, *, per_head: bool) -> bool:
        """Whether it has the state-space scan; ``per_head``: one decay a head, as Mamba-2 has it."""
        sizes = _SSM_STATES.get(self.family)
        return sizes is None or (per_head and state_size in sizes)


def row_padding(family: str, type_name: str, row: int) -> int:
    """Bytes behind a quantised tensor on a device, so that whole blocks of rows can be read."""
    if family not in _LIKE_CUDA or type_name in _PLAIN_TYPES or row % _ROW == 0:
        return 0
    return row_bytes(type_name, _ROW - row % _ROW)


def family_of(device: str) -> str:
    """``Vulkan`` of ``Vulkan0``."""
    match = _NAME.match(device)
    return match[1] if match else device


def device_backend(device: str) -> Backend:
    """Alignment 16 on Vulkan is what the software device has; cards say 16 to 64."""
    return Backend(family_of(device), _ALIGNMENTS.get(family_of(device), 32))


def host_backend(first_device: str | None) -> Backend:
    """The CPU; beside a device its buffers are the device's pinned ones."""
    if first_device is not None and family_of(first_device) == "Vulkan":
        return Backend("CPU", 64, 32)
    return Backend("CPU", 32)


def rows_of(node: Tensor) -> int:
    """Rows of an operation, as a device counts them to decide whether it pays to take it over."""
    if node.op == "GET_ROWS":
        return 0
    if node.op == "MUL_MAT":
        return node.ne[1]
    if node.op in {"MUL_MAT_ID", "ROPE"}:
        return node.ne[2]
    return node.ne[1] * node.ne[2] * node.ne[3]
