"""ggml's scheduler, replayed: which backend computes each node, where the graph is cut, and what is copied over.

Facts from ``ggml_backend_sched_split_graph``. Backends are numbered by priority; the CPU is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engines.llama_cpp.graphs.allocator import Arena, reserve
from engines.llama_cpp.graphs.backends import OFFLOAD_ROWS, Backend, rows_of
from engines.llama_cpp.graphs.tensors import NOTHING, VIEWS, Graph, Tensor
from engines.llama_cpp.graphs.vulkan import reorder

_ROPE_LIKE = frozenset({"ROPE", "FLASH_ATTN_EXT"})  # their weights are too small to decide where they run


@dataclass(slots=True)
class _Split:
    backend: int
    inputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a scheduler works.

    Attributes:
        takes_over: devices compute large batches even where the weights lie on the host.
        copies: batches that several devices work on at once; each keeps its own inputs.
        copies_all: inputs that no node uses are kept too.
        sinks_decide: attention runs where its sinks lie, small as they are; so it was in older builds.
    """

    takes_over: bool = True
    copies: int = 1
    copies_all: bool = True
    sinks_decide: bool = False


def compute_bytes(graph: Graph, backends: Sequence[Backend], policy: Policy) -> list[int]:
    """Bytes of each backend's compute buffer for a graph."""
    arenas = [Arena(backend) for backend in backends]
    leaves: list[Tensor] = graph.leaves
    nodes: list[Tensor] = graph.nodes
    if len(backends) == 1:
        for tensor in (*leaves, *nodes):
            tensor.backend = 0
    else:
        scheduler = _Scheduler(backends, policy)
        nodes = scheduler.schedule(graph)
        leaves = [*scheduler.kept, *leaves]
    sizes = reserve(leaves, nodes, arenas)
    return [size + backend.extra if size else 0 for size, backend in zip(sizes, backends, strict=True)]


def assign(graph: Graph, backends: Sequence[Backend], policy: Policy) -> None:
    """Decide the backend of each node, and go no further."""
    _Scheduler(backends, policy).schedule(graph)


class _Scheduler:
    def __init__(self, backends: Sequence[Backend], policy: Policy) -> None:
        self._backends = backends
        self._host = len(backends) - 1
        self._policy = policy
        self.kept: list[Tensor] = []

    def schedule(self, graph: Graph) -> list[Tensor]:
        """Nodes in the order of computing, with the copies between backends; each has its backend."""
        for tensor in (*graph.leaves, *graph.nodes):
            if tensor.backend < 0:
                tensor.backend = self._from_buffers(tensor)
        real = [node for node in graph.nodes if node.op not in VIEWS]
        self._spread(real, self._is_device)
        self._spread(real[::-1], self._is_device)
        self._spread(real, lambda backend: backend >= 0)
        self._spread(real[::-1], lambda backend: backend >= 0)
        for node in real:
            if node.backend < 0:
                node.backend = self._best_for(node)
        self._settle_sources(graph.nodes)
        splits = self._cut(graph.nodes)
        if self._policy.copies > 1:
            self._keep_copies(graph, splits)
        return self._joined(splits)

    def _is_device(self, backend: int) -> bool:
        return 0 <= backend < self._host

    def _from_buffers(self, tensor: Tensor) -> int:
        holder = tensor.root or tensor
        if holder.store is not None:
            return holder.store if self._backends[holder.store].runs(tensor) else self._host
        if tensor.is_input:
            return self._host
        if tensor.op in _ROPE_LIKE and not (self._policy.sinks_decide and tensor.op == "FLASH_ATTN_EXT"):
            return -1
        for source in tensor.srcs:
            if source.weight and source.store is not None:
                return self._of_weight(tensor, source.store)
        return -1

    def _of_weight(self, tensor: Tensor, store: int) -> int:
        if store == self._host:
            if self._policy.takes_over and rows_of(tensor) >= OFFLOAD_ROWS:
                for index in range(self._host):
                    if self._backends[index].runs(tensor):
                        return index
            return store
        return store if self._backends[store].runs(tensor) else -1

    def _spread(self, nodes: Sequence[Tensor], spreads: Callable[[int], bool]) -> None:
        """Give nodes without a backend that of the node before them."""
        current = -1
        for node in nodes:
            if node.backend >= 0:
                current = node.backend if spreads(node.backend) else -1
            elif current >= 0 and self._backends[current].runs(node):
                node.backend = current

    def _best_for(self, node: Tensor) -> int:
        best, most = self._host, -1
        for index, backend in enumerate(self._backends):
            if not backend.runs(node):
                continue
            reachable = sum(self._reaches(source, index) for source in node.srcs)
            if reachable > most:
                best, most = index, reachable
        return best

    def _reaches(self, tensor: Tensor, backend: int) -> bool:
        holder = tensor.root or tensor
        if holder.store is not None:
            return holder.store == backend
        decided = tensor.backend if tensor.backend >= 0 else holder.backend
        return decided == backend

    def _settle_sources(self, nodes: Sequence[Tensor]) -> None:
        for node in nodes:
            if node.root is not None and node.backend < 0:
                node.backend = node.root.backend
            for source in node.srcs:
                if source.backend < 0:
                    source.backend = source.root.backend if source.root is not None else node.backend
            if node.backend < 0:
                node.backend = next(index for index, backend in enumerate(self._backends) if backend.runs(node))

    def _cut(self, nodes: Sequence[Tensor]) -> list[_Split]:
        first = next((node.backend for node in nodes if node.op not in VIEWS), self._host)
        split = _Split(first)
        splits = [split]
        copies: dict[tuple[int, int], Tensor] = {}
        for node in nodes:
            if node.op in VIEWS:
                split.nodes.append(node)
                continue
            other = node.backend != split.backend
            if other or (split.inputs and self._has_foreign_weight(node, split.backend)):
                split = _Split(node.backend)
                splits.append(split)
            self._copy_inputs(node, split, copies)
            split.nodes.append(node)
        return splits

    def _has_foreign_weight(self, node: Tensor, backend: int) -> bool:
        return any(
            source.weight and source.backend != backend and not self._reaches(source, backend) for source in node.srcs
        )

    def _copy_inputs(self, node: Tensor, split: _Split, copies: dict[tuple[int, int], Tensor]) -> None:
        for place, source in enumerate(node.srcs):
            if source.backend == split.backend or self._reaches(source, split.backend):
                continue
            copy = copies.get((id(source), split.backend))
            if copy is None:
                copy = Tensor(NOTHING, source.ne, source.type_name, nb=source.nb)
                copy.backend = split.backend
                copies[id(source), split.backend] = copy
                split.inputs.append((source, copy))
            node.srcs[place] = copy

    def _keep_copies(self, graph: Graph, splits: Sequence[_Split]) -> None:
        """Inputs of the graph and of its splits, as often as batches are worked on at once; never freed."""
        used = {id(source) for split in splits for node in split.nodes for source in node.srcs}
        used |= {id(source) for split in splits for source, _ in split.inputs}
        for leaf in graph.leaves:
            if leaf.is_input and (self._policy.copies_all or id(leaf) in used):
                self._keep(leaf)
        for split in splits:
            for _, copy in split.inputs:
                self._keep(copy)

    def _keep(self, tensor: Tensor) -> None:
        more = [Tensor(NOTHING, tensor.ne, tensor.type_name, nb=tensor.nb) for _ in range(self._policy.copies - 1)]
        for copy in (tensor, *more):
            copy.backend = tensor.backend
            copy.is_input = copy.is_output = True
            self.kept.append(copy)

    def _joined(self, splits: Sequence[_Split]) -> list[Tensor]:
        nodes: list[Tensor] = []
        for split in splits:
            for source, copy in split.inputs:
                keeper = Tensor(NOTHING, source.ne, source.type_name, (source,), source, source.nb)
                keeper.backend = source.backend
                nodes += (keeper, copy)
            is_vulkan = self._backends[split.backend].family == "Vulkan"
            nodes += reorder(split.nodes) if is_vulkan else split.nodes
        return nodes
