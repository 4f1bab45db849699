"""ggml's graph allocator, replayed: how large a buffer must be so that every tensor has its place while it lives.

Facts from ``ggml-alloc.c``: leaves first; best fit among the holes, else the end; a result may take over the memory
of a source of the same shape that nothing else needs; a view never hands its memory on; outputs are never freed.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.llama_cpp.graphs.backends import Backend
from engines.llama_cpp.graphs.tensors import NOTHING, Tensor

_ENDLESS = 1 << 62
_IN_PLACE = frozenset(
    {
        "FILL",
        "SCALE",
        "ADD",
        "ADD_ID",
        "SUB",
        "MUL",
        "DIV",
        "SQR",
        "SQRT",
        "UNARY",
        "ROPE",
        "RMS_NORM",
        "CLAMP",
        "SOFT_MAX",
    }
)


class Arena:
    """One buffer's free blocks and the most that was ever in use, in bytes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.peak = 0
        self._free: list[list[int]] = [[0, _ENDLESS]]

    def bytes_of(self, tensor: Tensor) -> int:
        """Bytes that a tensor takes here."""
        alignment = self._backend.alignment
        return -(-self._backend.allotted(tensor) // alignment) * alignment

    def take(self, size: int) -> int:
        """Offset of a new block."""
        free = self._free
        best = len(free) - 1
        best_size = _ENDLESS * 2
        for index in range(len(free) - 1):
            room = free[index][1]
            if size <= room <= best_size:
                best, best_size = index, room
        block = free[best]
        offset = block[0]
        block[0] += size
        block[1] -= size
        if block[1] == 0:
            free.pop(best)
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a block, joined with the free blocks beside it as ggml joins them."""
        free = self._free
        for index, block in enumerate(free):
            if block[0] + block[1] == offset:
                block[1] += size
                if index + 1 < len(free) and block[0] + block[1] == free[index + 1][0]:
                    block[1] += free.pop(index + 1)[1]
                return
            if offset + size == block[0]:
                block[0] = offset
                block[1] += size
                if index and free[index - 1][0] + free[index - 1][1] == offset:
                    free[index - 1][1] += free.pop(index)[1]
                return
        index = 0
        while index < len(free) and free[index][0] < offset:
            index += 1
        free.insert(index, [offset, size])


def reserve(leaves: Sequence[Tensor], nodes: Sequence[Tensor], arenas: Sequence[Arena]) -> list[int]:
    """Bytes of each arena; a tensor's ``backend`` is the arena that it is to lie in."""
    replay = _Replay(arenas)
    for leaf in leaves:
        replay.place(leaf)
    for node in nodes:
        if node.root is not None and node.op != NOTHING:
            node.root.views += 1
        for source in node.srcs:
            source.children += 1
    for node in nodes:
        for source in node.srcs:
            replay.place(source)
        replay.place(node)
        replay.release_sources(node)
    return [arena.peak for arena in arenas]


class _Replay:
    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas = arenas

    def place(self, tensor: Tensor) -> None:
        if tensor.held or tensor.root is not None or tensor.store is not None:
            return
        tensor.held = True
        if tensor.op in _IN_PLACE and self._take_over(tensor):
            return
        arena = self._arenas[tensor.backend]
        tensor.place = tensor.backend
        tensor.offset = arena.take(arena.bytes_of(tensor))

    def _take_over(self, tensor: Tensor) -> bool:
        for source in tensor.srcs:
            fits = source.ne == tensor.ne and source.nb == tensor.nb and source.type_name == tensor.type_name
            if not fits or not source.held or source.is_output or source.root is not None:
                continue
            if source.children == 1 and source.views == 0:
                tensor.offset, tensor.place = source.offset, source.place
                source.held = False
                return True
        return False

    def release_sources(self, node: Tensor) -> None:
        for source in node.srcs:
            source.children -= 1
            if source.children or source.views:
                continue
            root = source.root
            if root is None:
                self._free(source)
                continue
            root.views -= 1
            if root.views == 0 and root.children == 0:
                self._free(root)

    def _free(self, tensor: Tensor) -> None:
        if not tensor.held or tensor.is_output:
            return
        tensor.held = False
        arena = self._arenas[tensor.place]
        arena.give(tensor.offset, arena.bytes_of(tensor))
