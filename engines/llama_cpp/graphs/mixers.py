"""The kinds of attention that decoders have: plain, gated, and over compressed keys.

Facts from llama.cpp's ``build_qkv`` and its networks in ``src/models``.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.attention import Attention
from engines.llama_cpp.graphs.network import Network
from engines.llama_cpp.graphs.ops import concat, cont, like, make, mul_mat, permute, reshape, view
from engines.llama_cpp.graphs.tensors import Tensor

_FLOAT = 4
_WITHOUT_ROPE = frozenset({"gpt2", "jamba", "nemotron_h", "nemotron_h_moe", "bloom", "mpt", "refact", "starcoder"})
_ROPE_IN_WINDOWS_ONLY = frozenset({"cohere2", "cohere2moe"})
_SCALES_QUERY = frozenset({"gemma", "gemma2", "gemma3", "phi2", "phi3", "phimoe"})
# Half of the query's projection gates the output.
HALF_QUERY_GATES = frozenset({"qwen35", "qwen35moe", "qwen3next"})


class AttentionMixers:
    """Attention layers of one network."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._name = net.model.architecture
        self._attention = Attention(net)

    def attend(self, normed: Tensor, layer: int) -> Tensor:
        """Attention of the layer's kind, projected back to the network's width."""
        net, prefix = self._net, f"blk.{layer}"
        if net.has(f"{prefix}.attn_kv_a_mqa.weight"):
            return self._latent(normed, layer)
        if self._name in HALF_QUERY_GATES:
            return self._gated(normed, layer)
        query, key, value = self._projected(normed, layer)
        cur = self._attention.over_cache(layer, query, key, value)
        return net.linear(cur, f"{prefix}.attn_output")

    def _projected(self, normed: Tensor, layer: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        net, shape, prefix = self._net, self._net.model.layers[layer], f"blk.{layer}"
        tokens = net.batch.tokens
        ne = ((shape.key, shape.heads), (shape.key, shape.heads_kv), (shape.value, shape.heads_kv))
        if net.has(f"{prefix}.attn_qkv.weight"):
            fused = net.linear(normed, f"{prefix}.attn_qkv")
            query, key, value = (view(fused, *size, tokens, nb=(size[0] * _FLOAT, fused.nb[1])) for size in ne)
            return self._placed(query, layer, "q"), self._placed(key, layer, "k"), value
        if not shape.owns_cache:
            query = self._headed(normed, layer, "q", ne[0])
            return self._placed(query, layer, "q"), None, None
        query, key = (self._headed(normed, layer, side, size) for side, size in zip("qk", ne[:2], strict=True))
        value = self._headed(normed, layer, "v", ne[2]) if net.has(f"{prefix}.attn_v.weight") else key
        if self._name == "gemma4":
            value = like("RMS_NORM", value)
        return self._placed(query, layer, "q"), self._placed(key, layer, "k"), value

    def _headed(self, normed: Tensor, layer: int, side: str, ne: tuple[int, int]) -> Tensor:
        """A projection cut into heads; a norm over all heads together comes before the cut."""
        net, name = self._net, f"blk.{layer}.attn_{side}"
        cur = net.linear(normed, name)
        weight = net.find(f"{name}_norm.weight")
        if weight is not None and weight.ne[0] != ne[0] and weight.ne[1] == 1:
            cur = net.norm(cur, f"{name}_norm", layer=layer)
        return reshape(cur, *ne, net.batch.tokens)

    def _placed(self, cur: Tensor, layer: int, side: str) -> Tensor:
        """Norm of each head, rotary positions, and the query's scale."""
        net, name = self._net, f"blk.{layer}.attn_{side}_norm"
        weight = net.find(f"{name}.weight")
        if weight is not None and weight.ne[0] == cur.ne[0]:
            cur = net.norm(cur, name, layer=layer)
        if self._rotates(layer):
            cur = net.rope(cur, layer)
        return like("SCALE", cur) if side == "q" and self._name in _SCALES_QUERY else cur

    def _rotates(self, layer: int) -> bool:
        if self._name in _ROPE_IN_WINDOWS_ONLY:
            return self._net.model.layers[layer].window is not None
        if self._name == "granitehybrid":
            return bool(self._net.model.number("rope.scaling.finetuned", 1))
        return self._name not in _WITHOUT_ROPE

    def _gated(self, normed: Tensor, layer: int) -> Tensor:
        """Attention whose output is gated by the second half of the query."""
        net, shape, prefix = self._net, self._net.model.layers[layer], f"blk.{layer}"
        tokens = net.batch.tokens
        both, key, value = (net.linear(normed, f"{prefix}.attn_{side}") for side in "qkv")
        late = self._name == "qwen3next"
        if late:
            both = reshape(both, 2 * shape.key, shape.heads, tokens, 1)
        steps = (2 * shape.key * _FLOAT, 2 * shape.key * shape.heads * _FLOAT)
        query, gate = (view(both, shape.key, shape.heads, tokens, nb=steps) for _ in range(2))
        query = self._placed(query, layer, "q")
        key = self._placed(reshape(key, shape.key, shape.heads_kv, tokens), layer, "k")
        value = reshape(value, shape.value, shape.heads_kv, tokens)
        cur = self._attention.over_cache(layer, query, key, value)
        gate = like("UNARY", cont(gate, (shape.key * shape.heads, tokens)))
        return mul_mat(net.need(f"{prefix}.attn_output.weight"), like("MUL", cur, gate))

    def _latent(self, normed: Tensor, layer: int) -> Tensor:
        """Attention over compressed keys (MLA), or over the keys and values made of them."""
        net, shape, prefix = self._net, self._net.model.layers[layer], f"blk.{layer}"
        tokens, heads = net.batch.tokens, shape.heads
        rope, rank = net.model.number("rope.dimension_count"), net.model.number("attention.kv_lora_rank")
        width = net.model.number("attention.key_length_mla", shape.key)
        if net.has(f"{prefix}.attn_q_a.weight"):
            query = mul_mat(net.need(f"{prefix}.attn_q_a.weight"), normed)
            query = net.norm(query, f"{prefix}.attn_q_a_norm", layer=layer)
            query = mul_mat(net.need(f"{prefix}.attn_q_b.weight"), query)
        else:
            query = mul_mat(net.need(f"{prefix}.attn_q.weight"), normed)
        query = reshape(query, width, heads, tokens) if net.mixed else query
        low = mul_mat(net.need(f"{prefix}.attn_kv_a_mqa.weight"), normed)
        inner = view(low, rank, tokens, nb=low.nb[1:2])
        place = view(low, rope, 1, tokens, nb=(low.nb[1], low.nb[1]))
        place = net.rope(place, layer)
        inner = net.norm(inner, f"{prefix}.attn_kv_a_norm", layer=layer)
        sides = (query, inner, place)
        return self._compressed(sides, layer, width) if net.model.mla else self._expanded(sides, layer, width)

    def _compressed(self, sides: tuple[Tensor, Tensor, Tensor], layer: int, width: int) -> Tensor:
        net, prefix = self._net, f"blk.{layer}"
        query, inner, place = sides
        tokens, heads, rope = net.batch.tokens, net.model.layers[layer].heads, place.ne[0]
        steps = (width * _FLOAT, width * heads * _FLOAT)
        plain, turned = (view(query, part, heads, tokens, nb=steps) for part in (width - rope, rope))
        turned = net.rope(turned, layer)
        plain = mul_mat(net.need(f"{prefix}.attn_k_b.weight"), permute(plain, 0, 2, 1, 3))
        query = concat(permute(plain, 0, 2, 1, 3), turned, 0)
        inner = reshape(inner, inner.ne[0], 1, tokens)
        key = concat(inner, place, 0)
        cur = self._attention.over_cache(layer, query, key, inner, net.need(f"{prefix}.attn_v_b.weight"))
        return mul_mat(net.need(f"{prefix}.attn_output.weight"), cur)

    def _expanded(self, sides: tuple[Tensor, Tensor, Tensor], layer: int, width: int) -> Tensor:
        net, prefix, shape = self._net, f"blk.{layer}", self._net.model.layers[layer]
        query, inner, place = sides
        tokens, heads, rope = net.batch.tokens, shape.heads, place.ne[0]
        both = mul_mat(net.need(f"{prefix}.attn_kv_b.weight"), inner)
        steps = tuple((width - rope + shape.value) * _FLOAT * count for count in (1, heads))
        plain, value = (view(both, part, heads, tokens, nb=steps) for part in (width - rope, shape.value))
        value = cont(value)
        if net.mixed:
            query = net.rope(query, layer)
        else:
            steps = (width * _FLOAT, width * heads * _FLOAT)
            turned = net.rope(view(query, rope, heads, tokens, nb=steps), layer)
            query = concat(view(query, width - rope, heads, tokens, nb=steps), turned, 0)
        key = concat(plain, make("REPEAT", (rope, heads, tokens), place), 0)
        cur = self._attention.over_cache(layer, query, key, value)
        return mul_mat(net.need(f"{prefix}.attn_output.weight"), cur)
