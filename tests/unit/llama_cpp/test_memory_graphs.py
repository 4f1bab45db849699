"""The replay of ggml's allocator and scheduler on small graphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engines.llama_cpp.graphs.allocator import Arena, reserve
from engines.llama_cpp.graphs.backends import Backend, device_backend, host_backend, rows_of
from engines.llama_cpp.graphs.folding import layers_to_build
from engines.llama_cpp.graphs.ops import like, make, mul_mat, permute, reshape, transpose, view
from engines.llama_cpp.graphs.scheduler import Policy, assign, compute_bytes
from engines.llama_cpp.graphs.tensors import Graph, Tensor, new_input, stored
from engines.llama_cpp.graphs.vulkan import reorder
from engines.llama_cpp.memory_launch import LaunchChoices, resolve
from engines.llama_cpp.memory_model import model_shape
from tests.support.memory_rows import metadata_of_row, recorded_headers

_HOST = Backend("CPU", 32)
_KIB = 1024


def _bytes(graph: Graph, backends: tuple[Backend, ...] = (_HOST,), policy: Policy | None = None) -> list[int]:
    return compute_bytes(graph, backends, policy or Policy())


def _chain(length: int) -> Graph:
    """An input of 1 KiB, and operations on it one after the other."""
    graph, cur = Graph(), new_input((256,))
    for _ in range(length):
        cur = like("ADD", cur, stored((256,), "F32", 0, weight=True))
    cur.is_output = True
    graph.expand(cur)
    return graph


def test_a_chain_works_in_place() -> None:
    """However long: each step takes over the memory of the one before."""
    assert _bytes(_chain(1)) == _bytes(_chain(20)) == [_KIB]


def test_an_operation_that_can_not_work_in_place_needs_both() -> None:
    """Source and result live at the same time; the third can use the first one's place."""
    graph, cur = Graph(), new_input((256,))
    for _ in range(5):
        cur = like("NORM", cur)
    graph.expand(cur)
    assert _bytes(graph) == [2 * _KIB]


def test_a_source_that_is_needed_later_keeps_its_memory() -> None:
    """A residual stays while its branch is computed."""
    graph, start = Graph(), new_input((256,))
    branch = like("NORM", like("NORM", start))
    graph.expand(like("ADD", branch, start))
    assert _bytes(graph) == [3 * _KIB]


def test_a_view_takes_no_memory_and_holds_its_root() -> None:
    """What a view shows is kept until the view is used, and can't be taken over."""
    graph, start = Graph(), new_input((256,))
    part = view(start, 128)
    other = like("NORM", start)
    graph.expand(like("ADD", reshape(other, 128, 2), make("NORM", (128,), part)))
    assert _bytes(graph) == [2 * _KIB + 512]


def test_weights_and_caches_take_nothing_of_the_buffer() -> None:
    """They lie elsewhere; only the result does not."""
    graph = Graph()
    graph.expand(mul_mat(stored((256, 64), "Q8_0", 0, weight=True), new_input((256, 2))))
    assert _bytes(graph) == [2 * _KIB + 512]


def test_strided_views_keep_their_gaps_when_copied() -> None:
    """A part of a fused projection spans nearly all of it: a copy of it does too."""
    fused = make("MUL_MAT", (192, 8))
    part = view(fused, 64, 8, nb=fused.nb[1:2])
    assert part.size == 192 * 4 * 7 + 64 * 4
    assert (part.contiguous, permute(fused, 1, 0, 2, 3).contiguous, transpose(fused).contiguous) == (False,) * 3
    assert reshape(fused, 8, 192).contiguous


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=30),
    picks=st.lists(st.integers(0, 2**16), min_size=60, max_size=60),
)
def test_live_tensors_never_overlap(sizes: list[int], picks: list[int]) -> None:
    """Whatever the graph: the buffer holds every tensor that lives at the same time, each in a place of its own."""
    graph = Graph()
    made: list[Tensor] = [new_input((8 * sizes[0],))]
    for place, size in enumerate(sizes):
        sources = [made[picks[2 * place] % len(made)], made[picks[2 * place + 1] % len(made)]]
        made.append(make("MUL_MAT", (8 * size,), *sources))
    made[-1].is_output = True
    graph.expand(made[-1])
    for tensor in (*graph.leaves, *graph.nodes):
        tensor.backend = 0
    arena = Arena(_HOST)
    (peak,) = reserve(graph.leaves, graph.nodes, [arena])
    order = {id(tensor): place for place, tensor in enumerate(graph.nodes)}
    ends = {id(tensor): len(graph.nodes) if tensor.is_output else -1 for tensor in (*graph.leaves, *graph.nodes)}
    for place, node in enumerate(graph.nodes):
        for source in node.srcs:
            ends[id(source)] = max(ends[id(source)], place)
    for place in range(len(graph.nodes)):
        alive = [
            tensor
            for tensor in (*graph.leaves, *graph.nodes)
            if order.get(id(tensor), -1) <= place <= ends[id(tensor)] or order.get(id(tensor)) == place
        ]
        spans = sorted((tensor.offset, tensor.offset + arena.bytes_of(tensor)) for tensor in alive)
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
        assert spans[-1][1] <= peak


def test_a_device_takes_over_large_batches_of_weights_on_the_host() -> None:
    """From 32 rows on it computes them, with a copy of the weight; fewer stay where the weight is."""
    backends = (device_backend("CUDA0"), host_backend("CUDA0"))

    def sizes(rows: int, *, takes_over: bool) -> list[int]:
        graph = Graph()
        graph.expand(mul_mat(stored((256, 64), "F16", 1, weight=True), new_input((256, rows))))
        return _bytes(graph, backends, Policy(takes_over=takes_over))

    assert sizes(31, takes_over=True)[0] == sizes(32, takes_over=False)[0] == 0
    assert sizes(32, takes_over=True) == [32 * _KIB + 32 * _KIB + 8 * _KIB, 32 * _KIB]


def test_attention_ran_where_its_sinks_lie_in_older_builds() -> None:
    """Newer ones leave it with its neighbours; then llama.cpp does not find it beside its layer."""
    backends = (device_backend("Vulkan0"), host_backend("Vulkan0"))

    def place(*, sinks_decide: bool) -> int:
        graph = Graph()
        sides = [stored((64, 256, 2), "F16", 1, weight=False) for _ in range(2)]
        sinks = stored((32,), "F32", 1, weight=True)
        attention = make(
            "FLASH_ATTN_EXT", (64, 32, 1), new_input((64, 1, 32)), *sides, new_input((256, 1), "F16"), sinks
        )
        graph.expand(attention)
        assign(graph, backends, Policy(sinks_decide=sinks_decide))
        return attention.backend

    assert (place(sinks_decide=True), place(sinks_decide=False)) == (0, 1)


def test_rows_are_counted_as_devices_count_them() -> None:
    """Look-ups never pay; experts count tokens, everything else rows."""
    assert rows_of(make("GET_ROWS", (8, 64))) == 0
    assert rows_of(make("MUL_MAT", (8, 3, 64))) == 3
    assert rows_of(make("MUL_MAT_ID", (8, 3, 64))) == 64
    assert rows_of(make("ADD", (8, 3, 64))) == 192


def test_several_devices_keep_inputs_for_each_batch_at_work() -> None:
    """Four batches at once: four copies of every input, on each side."""
    backends = (device_backend("CUDA0"), device_backend("CUDA1"), host_backend("CUDA0"))

    def host_bytes(copies: int) -> int:
        graph = Graph()
        cur = mul_mat(stored((256, 256), "F16", 0, weight=True), new_input((256, 4)))
        graph.expand(mul_mat(stored((256, 256), "F16", 1, weight=True), cur))
        return _bytes(graph, backends, Policy(copies=copies))[2]

    assert host_bytes(4) == 4 * host_bytes(1)


def test_the_vulkan_order_keeps_all_nodes_and_every_source_first() -> None:
    """It moves what waits for nothing ahead, and never a node before what it needs."""
    graph, start = Graph(), new_input((64, 4))
    sides = [mul_mat(stored((64, 64), "F16", 0, weight=True), start) for _ in range(3)]
    turned = [like("ROPE", side, new_input((4,), "I32")) for side in sides[:2]]
    for tensor in (*turned, sides[2]):
        graph.expand(tensor)
    order = reorder(graph.nodes)
    assert sorted(map(id, order)) == sorted(map(id, graph.nodes))
    assert [node.op for node in graph.nodes] == ["MUL_MAT", "ROPE", "MUL_MAT", "ROPE", "MUL_MAT"]
    assert [node.op for node in order] == ["MUL_MAT", "MUL_MAT", "MUL_MAT", "ROPE", "ROPE"]


def test_deep_networks_are_built_from_a_few_of_their_layers() -> None:
    """Short ones whole; of long runs of alike layers the first and the last ones, by the period of the pattern."""
    header = next(header for header in recorded_headers().values() if header["kv"]["general.architecture"] == "gemma3")
    shape = model_shape(metadata_of_row(header))
    assert shape is not None
    short = replace(shape, layers=shape.layers[:6], tensors={})
    deep = replace(short, layers=short.layers * 8)
    assert layers_to_build(short, resolve(LaunchChoices(), short)) == tuple(range(6))
    folded = layers_to_build(deep, resolve(LaunchChoices(), deep))
    assert folded == (*range(24), *range(36, 48))
