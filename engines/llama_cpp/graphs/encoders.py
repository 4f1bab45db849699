"""Networks that make vectors of text: BERT and its kin, and Gemma's embedding model.

Facts from llama.cpp's ``bert.cpp`` and ``gemma-embedding.cpp``.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.attention import Attention
from engines.llama_cpp.graphs.decoders import pool
from engines.llama_cpp.graphs.network import Network
from engines.llama_cpp.graphs.ops import get_rows, like, reshape, view
from engines.llama_cpp.graphs.tensors import Tensor

_FLOAT = 4
_ROTATES = frozenset({"nomic-bert", "nomic-bert-moe", "jina-bert-v3", "gemma-embedding"})
BERTS = frozenset({"bert", "nomic-bert", "jina-bert-v3"})


def build_bert(net: Network) -> None:
    """A network of the BERT family: norms come after each part."""
    attention = Attention(net)
    cur = net.embeddings()
    if net.has("token_types.weight"):
        cur = like("ADD", cur, view(net.need("token_types.weight"), net.model.embedding))
    if net.has("position_embd.weight"):
        cur = like("ADD", get_rows(net.need("position_embd.weight"), net.positions()), cur)
    cur = net.norm(cur, "token_embd_norm", layer=0, rms=False)
    last = len(net.model.layers) - 1
    for layer in net.layers:
        prefix, before = f"blk.{layer}", cur
        query, key, value = _sides(net, cur, layer)
        cur = net.linear(attention.over_batch(layer, query, key, value), f"{prefix}.attn_output")
        if layer == last:
            cur, before = net.output_rows(cur), net.output_rows(before)
        cur = net.norm(like("ADD", cur, before), f"{prefix}.attn_output_norm", layer=layer, rms=False)
        cur = like("ADD", net.feed_forward(cur, prefix), cur)
        cur = net.norm(cur, f"{prefix}.layer_output_norm", layer=layer, rms=False)
    _finish(net, cur)


def build_gemma_embedding(net: Network) -> None:
    """Gemma without a cache: norms before and after each part."""
    attention = Attention(net)
    cur = net.embeddings(scale_rows=True)
    last = len(net.model.layers) - 1
    for layer in net.layers:
        prefix, before = f"blk.{layer}", cur
        query, key, value = _sides(net, net.norm(cur, f"{prefix}.attn_norm", layer=layer), layer)
        cur = net.linear(attention.over_batch(layer, like("SCALE", query), key, value), f"{prefix}.attn_output")
        if layer == last:
            cur, before = net.output_rows(cur), net.output_rows(before)
        before = like("ADD", net.norm(cur, f"{prefix}.post_attention_norm", layer=layer), before)
        cur = net.feed_forward(net.norm(before, f"{prefix}.ffn_norm", layer=layer), prefix)
        cur = like("ADD", net.norm(cur, f"{prefix}.post_ffw_norm"), before)
    _finish(net, net.norm(cur, "output_norm"))


def _sides(net: Network, cur: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    shape, prefix, tokens = net.model.layers[layer], f"blk.{layer}", net.batch.tokens
    sizes = ((shape.key, shape.heads), (shape.key, shape.heads_kv), (shape.value, shape.heads_kv))
    if net.has(f"{prefix}.attn_qkv.weight"):
        fused = net.linear(cur, f"{prefix}.attn_qkv")
        query, key, value = (view(fused, *size, tokens, nb=(size[0] * _FLOAT, fused.nb[1])) for size in sizes)
    else:
        names = (f"{prefix}.attn_{side}" for side in "qkv")
        query, key, value = (
            reshape(net.linear(cur, name), *size, tokens) for name, size in zip(names, sizes, strict=True)
        )
    return _placed(net, query, layer, "q"), _placed(net, key, layer, "k"), value


def _placed(net: Network, cur: Tensor, layer: int, side: str) -> Tensor:
    name = f"blk.{layer}.attn_{side}_norm"
    if net.has(f"{name}.weight"):
        cur = net.norm(cur, name, layer=layer)
    return net.rope(cur, layer) if net.model.architecture in _ROTATES else cur


def _finish(net: Network, cur: Tensor) -> None:
    net.graph.expand(cur)
    cur.is_output = True
    pooled = pool(net, cur)
    if pooled is not None:
        pooled.is_output = True
