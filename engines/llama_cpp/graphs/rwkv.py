"""RWKV-7: a recurrent network without attention.

Facts from llama.cpp's ``rwkv7.cpp`` and ``rwkv7-base.cpp``.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.network import Network
from engines.llama_cpp.graphs.ops import concat, like, make, mul_mat, reshape, sum_rows, view
from engines.llama_cpp.graphs.recurrent import States
from engines.llama_cpp.graphs.tensors import Tensor

_MIXES = 6


class Rwkv7:
    """Builds the graph of one network."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._states = States(net)
        self._first_value: Tensor | None = None
        self._size = net.model.number("wkv.head_size")

    def build(self) -> None:
        """All nodes, the outputs marked."""
        net = self._net
        cur = net.norm(net.embeddings(), "token_embd_norm", layer=0, rms=False)
        last = len(net.model.layers) - 1
        for layer in net.layers:
            cur = self._layer(cur, layer, cuts=layer == last)
        embedded = net.norm(cur, "output_norm", rms=False)
        logits = mul_mat(net.output_weight(), embedded)
        net.graph.expand(logits)
        embedded.is_output = logits.is_output = True

    def _layer(self, cur: Tensor, layer: int, *, cuts: bool) -> Tensor:
        net, prefix = self._net, f"blk.{layer}"
        width, tokens, sequences = net.model.embedding, net.batch.sequence_tokens, net.batch.sequences
        cur = reshape(cur, width, tokens, sequences)
        shifts = reshape(self._states.read(layer, "conv"), width, 2, sequences)
        first, second = (view(shifts, width, 1, sequences, nb=shifts.nb[1:3]) for _ in range(2))
        normed = net.norm(cur, f"{prefix}.attn_norm", layer=layer, rms=False)
        before = concat(first, view(normed, width, tokens - 1, sequences, nb=normed.nb[1:3]), 1)
        half = like("ADD", self._time_mix(normed, before, layer), cur)
        normed_half = net.norm(half, f"{prefix}.attn_norm_2", layer=layer, rms=False)
        before = concat(second, view(normed_half, width, tokens - 1, sequences, nb=normed_half.nb[1:3]), 1)
        ends = [view(side, width, 1, sequences, nb=side.nb[1:3]) for side in (normed, normed_half)]
        shifts = concat(ends[0], ends[1], 1)
        self._states.write(layer, "conv", view(shifts, width * sequences * 2))
        sides = [reshape(side, width, tokens * sequences) for side in (half, normed_half, before)]
        if cuts:
            sides = [net.output_rows(side) for side in sides]
        half, normed_half, before = sides
        return like("ADD", self._channel_mix(normed_half, before, layer), half)

    def _channel_mix(self, cur: Tensor, before: Tensor, layer: int) -> Tensor:
        net, prefix = self._net, f"blk.{layer}"
        moved = like("MUL", like("SUB", before, cur), net.need(f"{prefix}.channel_mix_lerp_k.weight"))
        key = mul_mat(net.need(f"{prefix}.channel_mix_key.weight"), like("ADD", moved, cur))
        key = like("SQR", like("UNARY", key))
        return mul_mat(net.need(f"{prefix}.channel_mix_value.weight"), key)

    def _low(self, cur: Tensor, layer: int, part: str, between: str | None = None) -> Tensor:
        """Through two small weights, with something between them."""
        net, prefix = self._net, f"blk.{layer}"
        low = mul_mat(net.need(f"{prefix}.time_mix_{part}1.weight"), cur)
        low = like(between, low) if between else low
        return mul_mat(net.need(f"{prefix}.time_mix_{part}2.weight"), low)

    def _time_mix(self, cur: Tensor, before: Tensor, layer: int) -> Tensor:
        net, prefix = self._net, f"blk.{layer}"
        width, tokens, sequences = net.model.embedding, net.batch.tokens, net.batch.sequences
        heads = width // self._size

        def weight(name: str) -> Tensor:
            return net.need(f"{prefix}.time_mix_{name}.weight")

        gated = net.has(f"{prefix}.time_mix_g1.weight")
        moved = like("SUB", before, cur)
        moved = make("REPEAT", (width, net.batch.sequence_tokens, sequences, _MIXES - (not gated)), moved)
        mixed = like("ADD", like("MUL", moved, weight("lerp_fused")), cur)
        receptance, decays, keys, values, rates, gates = (view(mixed, width, tokens) for _ in range(_MIXES))
        receptance = mul_mat(weight("receptance"), receptance)
        decay = like("ADD", self._low(decays, layer, "w", "UNARY"), weight("w0"))
        decay = like("UNARY", like("SCALE", like("UNARY", decay)))
        key = mul_mat(weight("key"), keys)
        value = self._value(mul_mat(weight("value"), values), values, layer)
        gate = self._low(gates, layer, "g", "UNARY") if gated else None
        rate = like("UNARY", like("ADD", self._low(rates, layer, "a"), weight("a0")))
        unit = like("L2_NORM", reshape(like("MUL", key, weight("k_k")), self._size, heads, tokens))
        scaled = like("MUL", key, weight("k_a"))
        key = like("ADD", key, like("SUB", like("MUL", rate, scaled), scaled))
        receptance, decay, key, value, rate = (
            reshape(side, self._size, heads, tokens) for side in (receptance, decay, key, value, rate)
        )
        state = self._states.read(layer, "scan")
        size = (width, tokens + self._size * sequences)
        sides = (receptance, decay, key, value, like("UNARY", unit), like("MUL", unit, rate), state)
        result = make("RWKV_WKV7", size, *sides)
        output = view(result, width * tokens)
        self._states.write(layer, "scan", view(result, width * self._size * sequences))
        output = self._normed(output, layer, heads)
        bonus = like("MUL", like("MUL", key, receptance), reshape(weight("r_k"), self._size, heads))
        bonus = reshape(like("MUL", value, sum_rows(bonus)), width, tokens)
        output = like("ADD", output, bonus)
        output = like("MUL", output, gate) if gate is not None else output
        output = mul_mat(weight("output"), output)
        return reshape(output, width, net.batch.sequence_tokens, sequences)

    def _value(self, value: Tensor, values: Tensor, layer: int) -> Tensor:
        """Values of later layers are drawn towards the first one's."""
        net = self._net
        if self._first_value is None:
            self._first_value = value
            return value
        low = like("ADD", self._low(values, layer, "v"), net.need(f"blk.{layer}.time_mix_v0.weight"))
        drawn = like("MUL", like("SUB", self._first_value, value), like("UNARY", low))
        return like("ADD", value, drawn)

    def _normed(self, output: Tensor, layer: int, heads: int) -> Tensor:
        net, name = self._net, f"blk.{layer}.time_mix_ln"
        width, tokens = net.model.embedding, net.batch.tokens
        if net.has(f"{name}.weight"):
            shaped = like("NORM", reshape(output, width // heads, heads, tokens))
            flat = reshape(shaped, width, tokens)
            return like("ADD", like("MUL", flat, net.need(f"{name}.weight")), net.need(f"{name}.bias"))
        return reshape(output, width, tokens)
