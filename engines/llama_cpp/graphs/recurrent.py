"""Layers that keep a state: Mamba, Mamba-2, gated delta nets, short convolutions, RWKV.

Facts from llama.cpp's ``build_rs``, ``mamba-base.cpp``, ``delta-net-base.cpp``, ``lfm2.cpp`` and ``rwkv7-base.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable

from engines.llama_cpp.graphs.delta_chunks import delta_chunks
from engines.llama_cpp.graphs.network import Network
from engines.llama_cpp.graphs.ops import (
    concat,
    cont,
    copy_into,
    get_rows,
    like,
    make,
    mul_mat,
    reshape,
    scale_in_place,
    transpose,
    view,
)
from engines.llama_cpp.graphs.tensors import Tensor, new_input, stored

_FLOAT = 4
_Read = Callable[[Tensor, Tensor], Tensor]


class States:
    """Recurrent states of one network, and how a layer reads and writes its own."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self._copies = new_input((net.batch.sequences,), "I32")
        self._main = view(self._copies, net.batch.sequences)
        # Newer builds gather all states at once, or all but the first where an operation reads the cache itself.
        self._more = view(self._copies, net.batch.sequences - 1 if net.mixed else 0)
        self._stored: dict[tuple[int, str], Tensor] = {}

    def cache(self, layer: int, part: str) -> Tensor:
        """All sequences' states of a layer; ``part`` is ``conv`` or ``scan``."""
        net = self.net
        if (layer, part) not in self._stored:
            size = net.model.conv_state if part == "conv" else net.model.scan_state
            place = net.store(net.launch.cache_place(layer))
            self._stored[layer, part] = stored((size, net.launch.slots), "F32", place, weight=False)
        return self._stored[layer, part]

    def read(self, layer: int, part: str, rows: _Read | None = None) -> Tensor:
        """States of the batch's sequences; one that begins is cleared on the way."""
        graph = self.net.graph
        cache = self.cache(layer, part)
        states = reshape(cache, *cache.ne[:2])
        graph.expand(scale_in_place(view(states, 0)))
        if self.net.mixed:
            gathered = get_rows(states, self._copies if rows is None else self._more)
            found = view(gathered, cache.ne[0], self.net.batch.sequences) if rows is None else rows(states, self._main)
            more = view(gathered, cache.ne[0], 0)
        else:
            found = get_rows(states, self._main) if rows is None else rows(states, self._main)
            more = get_rows(states, self._more)
        graph.expand(found)
        graph.expand(copy_into(more, view(cache, cache.ne[0], 0)))
        return found

    def write(self, layer: int, part: str, source: Tensor) -> None:
        """Keep what ``source`` holds as the layer's new state."""
        cache = self.cache(layer, part)
        self.net.graph.expand(copy_into(source, view(cache, source.elements)))

    def convolved(self, layer: int, source: Tensor) -> Tensor:
        """The last inputs of each sequence before ``source`` (tokens first), and the state moved on."""
        net = self.net
        sequences = net.batch.sequences
        width = source.ne[1]
        past = net.model.conv_state // width
        old = reshape(self.read(layer, "conv"), past, width, sequences)
        both = concat(old, source, 0)
        self.write(layer, "conv", view(both, past, width, sequences, nb=both.nb[1:3]))
        return both


def mamba2(states: States, source: Tensor, layer: int) -> Tensor:
    """Mamba-2: one decay a head."""
    net, prefix = states.net, f"blk.{layer}"
    number, batch = net.model.number, net.batch
    inner, state, heads, groups = (
        number(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    tokens, sequences = batch.sequence_tokens, batch.sequences
    width = inner + 2 * groups * state
    past = net.model.conv_state // width
    old = reshape(states.read(layer, "conv"), past, width, sequences)
    if net.flat:
        mixed = mul_mat(net.need(f"{prefix}.ssm_in.weight"), source)
        mixed = reshape(mixed, mixed.ne[0], tokens, sequences)
    else:
        mixed = mul_mat(net.need(f"{prefix}.ssm_in.weight"), reshape(source, source.ne[0], tokens, sequences))
    steps_of = mixed.nb[1:3]
    gate = view(mixed, inner // heads, heads, tokens, sequences, nb=(inner // heads * _FLOAT, *steps_of))
    inputs = view(mixed, width, tokens, sequences, nb=steps_of)
    steps = view(mixed, heads, tokens, sequences, nb=steps_of)
    both = concat(old, transpose(inputs), 0)
    states.write(layer, "conv", view(both, past, width, sequences, nb=both.nb[1:3]))
    conv = make("SSM_CONV", (width, tokens, sequences), both, net.need(f"{prefix}.ssm_conv1d.weight"))
    conv = like("UNARY", like("ADD", conv, net.need(f"{prefix}.ssm_conv1d.bias")))
    value = view(conv, inner // heads, heads, tokens, sequences, nb=(inner // heads * _FLOAT, *conv.nb[1:3]))
    sides = [view(conv, state, groups, tokens, sequences, nb=(state * _FLOAT, *conv.nb[1:3])) for _ in range(2)]
    steps = like("ADD", cont(steps), net.need(f"{prefix}.ssm_dt.bias"))
    decay = net.need(f"{prefix}.ssm_a")

    def scan(rows: Tensor, ids: Tensor) -> Tensor:
        shaped = reshape(rows, state, inner // heads, heads, net.launch.slots)
        size = value.elements + state * inner * sequences
        return make("SSM_SCAN", (size,), shaped, value, steps, decay, *sides, ids)

    scanned = states.read(layer, "scan", scan)
    states.write(layer, "scan", view(scanned, state * inner, sequences, 1))
    line = value.nb[1] * heads
    result = view(scanned, *value.ne, nb=(value.nb[1], line, line * tokens))
    result = like("ADD", result, like("MUL", value, net.need(f"{prefix}.ssm_d")))
    result = like("GLU", cont(gate), result)
    if net.has(f"{prefix}.ssm_norm.weight"):
        result = reshape(result, inner // groups, groups, tokens, sequences)
        result = net.norm(result, f"{prefix}.ssm_norm", layer=layer, rms=True)
    if net.flat:
        return mul_mat(net.need(f"{prefix}.ssm_out.weight"), reshape(result, inner, tokens * sequences))
    result = mul_mat(net.need(f"{prefix}.ssm_out.weight"), reshape(result, inner, tokens, sequences))
    return reshape(result, result.ne[0], tokens * sequences)


def mamba(states: States, source: Tensor, layer: int) -> Tensor:
    """Mamba-1: a decay for each number of the state."""
    net, prefix = states.net, f"blk.{layer}"
    number, batch = net.model.number, net.batch
    inner, state, rank = (number(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    tokens, sequences = batch.sequence_tokens, batch.sequences
    past = net.model.conv_state // inner
    old = reshape(states.read(layer, "conv"), past, inner, sequences)
    mixed = mul_mat(net.need(f"{prefix}.ssm_in.weight"), reshape(source, source.ne[0], tokens, sequences))
    value, gate = (view(mixed, inner, tokens, sequences, nb=mixed.nb[1:3]) for _ in range(2))
    both = concat(old, transpose(value), 0)
    states.write(layer, "conv", view(both, past, inner, sequences, nb=both.nb[1:3]))
    value = make("SSM_CONV", (inner, tokens, sequences), both, net.need(f"{prefix}.ssm_conv1d.weight"))
    value = like("UNARY", like("ADD", value, net.need(f"{prefix}.ssm_conv1d.bias")))
    low = mul_mat(net.need(f"{prefix}.ssm_x.weight"), value)
    steps = view(low, rank, tokens, sequences, nb=low.nb[1:3])
    sides = [view(low, state, 1, tokens, sequences, nb=(state * _FLOAT, *low.nb[1:3])) for _ in range(2)]
    if net.has(f"{prefix}.ssm_dt_norm.weight"):
        steps = net.norm(steps, f"{prefix}.ssm_dt_norm", layer=layer, rms=True)
        names = (f"{prefix}.ssm_b_norm", f"{prefix}.ssm_c_norm")
        sides = [net.norm(side, name, layer=layer, rms=True) for side, name in zip(sides, names, strict=True)]
    elif net.flat:
        steps = cont(steps)
    steps = like("ADD", mul_mat(net.need(f"{prefix}.ssm_dt.weight"), steps), net.need(f"{prefix}.ssm_dt.bias"))
    by_head = reshape(value, 1, inner, tokens, sequences)
    decay = net.need(f"{prefix}.ssm_a")

    def scan(rows: Tensor, ids: Tensor) -> Tensor:
        shaped = reshape(rows, state, 1, inner, net.launch.slots)
        size = by_head.elements + state * inner * sequences
        return make("SSM_SCAN", (size,), shaped, by_head, steps, decay, *sides, ids)

    scanned = states.read(layer, "scan", scan)
    states.write(layer, "scan", view(scanned, state * inner * sequences))
    result = view(scanned, inner, tokens, sequences)
    result = like("ADD", result, like("MUL", value, net.need(f"{prefix}.ssm_d")))
    result = like("GLU", cont(gate), result)
    result = mul_mat(net.need(f"{prefix}.ssm_out.weight"), result)
    return reshape(result, result.ne[0], tokens * sequences)


def short_convolution(states: States, source: Tensor, layer: int) -> Tensor:
    """LFM2's gated convolution over a few tokens."""
    net, prefix = states.net, f"blk.{layer}"
    tokens, sequences = net.batch.sequence_tokens, net.batch.sequences
    width = net.model.embedding
    past = net.model.conv_state // width
    parts = mul_mat(net.need(f"{prefix}.shortconv.in_proj.weight"), reshape(source, source.ne[0], tokens, sequences))
    first, second, third = (view(parts, width, tokens, sequences, nb=parts.nb[1:3]) for _ in range(3))
    gated = transpose(like("MUL", first, third))
    old = reshape(states.read(layer, "conv"), past, width, sequences)
    both = concat(old, gated, 0)
    states.write(layer, "conv", view(both, past, width, sequences, nb=both.nb[1:3]))
    conv = make("SSM_CONV", (width, tokens, sequences), both, net.need(f"{prefix}.shortconv.conv.weight"))
    result = like("MUL", second, conv)
    result = mul_mat(net.need(f"{prefix}.shortconv.out_proj.weight"), result)
    return reshape(result, result.ne[0], tokens * sequences)


def delta_net(states: States, source: Tensor, layer: int) -> Tensor:
    """Gated delta net of Qwen3-Next and Qwen3.5, computed by the fused operation."""
    net, prefix = states.net, f"blk.{layer}"
    number = net.model.number
    inner, key, heads, groups = (
        number(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    tokens, sequences = net.batch.sequence_tokens, net.batch.sequences
    value = inner // heads
    mixed = mul_mat(net.need(f"{prefix}.attn_qkv.weight"), source)
    mixed = reshape(mixed, mixed.ne[0], tokens, sequences)
    gate = mul_mat(net.need(f"{prefix}.attn_gate.weight"), source)
    rate, decay = _rates(net, source, layer)
    both = states.convolved(layer, transpose(mixed))
    state = reshape(states.read(layer, "scan"), value, value, heads, sequences)
    width = inner + 2 * groups * key
    conv = make("SSM_CONV", (width, tokens, sequences), both, net.need(f"{prefix}.ssm_conv1d.weight"))
    conv = like("UNARY", conv)
    line = (width * _FLOAT, width * _FLOAT * tokens)
    query, keys = (_unit(net, view(conv, key, groups, tokens, sequences, nb=(key * _FLOAT, *line))) for _ in range(2))
    values = view(conv, value, heads, tokens, sequences, nb=(value * _FLOAT, *line))
    if groups != heads and net.model.architecture == "qwen3next":
        query, keys = (_repeated(side, heads) for side in (query, keys))
    elif groups != heads and not net.fuses_delta:
        query, keys = (make("REPEAT", (key, heads, tokens, sequences), side) for side in (query, keys))
    if net.fuses_delta or tokens == 1:
        size = (value * heads, tokens * sequences + value * sequences)
        result = make("GATED_DELTA_NET", size, query, keys, values, decay, rate, state)
        net.fused.append((layer, result))
        output, new = view(result, value, heads, tokens, sequences), view(result, value, value, heads, sequences)
    else:
        output, new = delta_chunks(query, keys, values, decay, rate, state)
    states.write(layer, "scan", new)
    normed = net.norm(output, f"{prefix}.ssm_norm", layer=layer, rms=True)
    gated = like("MUL", normed, like("UNARY", reshape(gate, value, heads, tokens, sequences)))
    result = mul_mat(net.need(f"{prefix}.ssm_out.weight"), reshape(gated, inner, tokens, sequences))
    return reshape(result, net.model.embedding, tokens * sequences)


def _rates(net: Network, source: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """How much each token writes, and how much the state decays."""
    prefix, tokens, sequences = f"blk.{layer}", net.batch.sequence_tokens, net.batch.sequences
    heads, groups = net.model.number("ssm.time_step_rank"), net.model.number("ssm.group_count")
    each = heads // groups
    if net.has(f"{prefix}.ssm_ba.weight"):
        both = mul_mat(net.need(f"{prefix}.ssm_ba.weight"), source)
        both = reshape(both, 2 * each, groups, tokens, sequences)
        rate, low = (view(both, each, groups, tokens, sequences, nb=both.nb[1:]) for _ in range(2))
        rate = like("UNARY", cont(rate))
        low = cont(low, (heads, tokens, sequences))
        decay = _decay(net, prefix, low)
        return reshape(rate, 1, heads, tokens, sequences), reshape(decay, 1, heads, tokens, sequences)
    rate = reshape(mul_mat(net.need(f"{prefix}.ssm_beta.weight"), source), 1, heads, tokens, sequences)
    rate = like("UNARY", rate)
    low = reshape(mul_mat(net.need(f"{prefix}.ssm_alpha.weight"), source), heads, tokens, sequences)
    return rate, reshape(_decay(net, prefix, low), 1, heads, tokens, sequences)


def _decay(net: Network, prefix: str, low: Tensor) -> Tensor:
    soft = like("UNARY", like("ADD", low, net.need(f"{prefix}.ssm_dt.bias")))
    return like("MUL", soft, net.need(f"{prefix}.ssm_a"))


def _unit(net: Network, source: Tensor) -> Tensor:
    """Rows of length one: a norm of its own, in newer builds a scaled RMS norm."""
    return like("SCALE", like("RMS_NORM", source)) if net.mixed else like("L2_NORM", source)


def _repeated(side: Tensor, heads: int) -> Tensor:
    key, groups, tokens, sequences = side.ne
    shaped = reshape(side, key, 1, groups, tokens * sequences)
    more = make("REPEAT", (key, heads // groups, groups, tokens * sequences), shaped)
    return reshape(more, key, heads, tokens, sequences)
