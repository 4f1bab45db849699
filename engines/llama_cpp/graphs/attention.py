"""Attention over a cache, or over the batch itself; and the inputs that a cache needs.

Facts from llama.cpp's ``build_attn``, ``build_attn_mha`` and ``llama_kv_cache``.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.llama_cpp.graphs.network import Network
from engines.llama_cpp.graphs.ops import cast, cont, like, make, mul_mat, permute, reshape, set_rows, transpose, view
from engines.llama_cpp.graphs.tensors import Tensor, new_input, row_bytes, stored
from engines.llama_cpp.memory_kv import CacheGroup, cache_groups, value_row
from engines.llama_cpp.memory_model import LayerShape

_PLAIN_TYPES = frozenset({"F32", "F16", "BF16"})
_ROTATED = 64  # values are rotated in blocks of this many numbers, where they are quantised


@dataclass(frozen=True, slots=True)
class _Sides:
    """What meets in attention; ``transposed``: values lie with tokens as rows' numbers."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    transposed: bool


class _Inputs:
    """What one group of caches is fed with each batch."""

    def __init__(self, net: Network, group: CacheGroup) -> None:
        model, choices, tokens = net.model, net.launch.choices, net.batch.tokens
        flash, streams = choices.flash_attention, net.launch.streams
        self.cells = group.cells
        widest = max(value_row(model, net.launch, layer) for layer in model.layers)
        self.key_slots = new_input((tokens,), "I64")
        self.value_slots = new_input((tokens * (1 if flash else widest),), "I64")
        self.mask = new_input((group.cells, tokens // streams, 1, streams), "F16" if net.launch.flash else "F32")
        self.key_turn = self.value_turn = None
        if model.mla:
            return
        first = model.layers[0]
        keys = {model.layers[place].key for place in group.layers}
        values = {model.layers[place].value for place in group.layers}
        if choices.cache_type_k.upper() not in _PLAIN_TYPES and len(keys) == 1 and first.key % _ROTATED == 0:
            size = _ROTATED
            while min(keys) % (2 * size) == 0:
                size *= 2
            self.key_turn = new_input((size, size))
        if choices.cache_type_v.upper() not in _PLAIN_TYPES and len(values) == 1 and first.value % _ROTATED == 0:
            self.value_turn = new_input((_ROTATED, _ROTATED))


class Attention:
    """Attention of one network."""

    def __init__(self, net: Network) -> None:
        self._net = net
        groups = cache_groups(net.model, net.launch)
        self.windowed = len(groups) > 1
        self._inputs = {group.windowed: _Inputs(net, group) for group in groups}
        self._masks: dict[bool, Tensor] = {}
        self._caches: dict[int, tuple[Tensor, Tensor | None]] = {}

    def over_cache(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, decompress: Tensor | None = None
    ) -> Tensor:
        """Store keys and values, and attend; without them another layer's cache is read.

        Args:
            layer: index of the layer.
            query: numbers a head, heads, tokens.
            key: as ``query``, with the cache's heads.
            value: as ``key``; where keys serve as values, only its width counts.
            decompress: weight that makes values of compressed ones.
        """
        net, shape = self._net, self._net.model.layers[layer]
        inputs = self._inputs[shape.window is not None]
        query = self._turned(query, inputs.key_turn)
        key = self._turned(key, inputs.key_turn) if key is not None else None
        value = self._turned(value, inputs.value_turn) if value is not None else None
        # Networks with windows ask for keys before values.
        order = (query, key, value) if self.windowed else (query, value, key)
        for tensor in order:
            if tensor is not None:
                net.graph.expand(tensor)
        keys, values = self._cache(layer)
        if key is not None:
            self._store_keys(keys, key, inputs)
        if value is not None and values is not None:
            self._store_values(values, value, inputs)
        key_view = self._by_head(keys, shape.key, shape.heads_kv)
        if values is None:
            assert value is not None
            value_view = view(key_view, value.ne[0], *key_view.ne[1:], nb=key_view.nb[1:])
        elif net.launch.choices.flash_attention:
            value_view = self._by_head(values, shape.value, shape.heads_kv)
        else:
            value_view = self._by_cell(values, shape.value, shape.heads_kv)
        transposed = values is not None and not net.launch.choices.flash_attention
        sides = _Sides(query, key_view, value_view, inputs.mask, transposed=transposed)
        return self._turned(self._attend(layer, sides, decompress), inputs.value_turn)

    def over_batch(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to the batch itself."""
        net = self._net
        for tensor in (query, key, value):
            net.graph.expand(tensor)
        windowed = net.model.layers[layer].window is not None
        mask = self._masks.get(windowed)
        if mask is None:
            kind = "F16" if net.launch.flash else "F32"
            mask = self._masks[windowed] = new_input((net.batch.tokens, net.batch.tokens), kind)
        return self._attend(layer, _Sides(query, key, value, mask, transposed=False), None)

    def _turned(self, tensor: Tensor, turn: Tensor | None) -> Tensor:
        if turn is None:
            return tensor
        size = turn.ne[0]
        ne = (size, tensor.elements // size)
        flat = reshape(tensor, *ne) if tensor.contiguous else cont(tensor, ne)
        return reshape(mul_mat(turn, flat), *tensor.ne)

    def _cache(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Caches of a layer, or of the last layer of its kind that has one."""
        layers = self._net.model.layers
        windowed = layers[layer].window is not None
        owner = layer
        while not layers[owner].owns_cache or (layers[owner].window is not None) != windowed:
            owner -= 1
        if owner not in self._caches:
            self._caches[owner] = self._new_cache(owner, layers[owner], self._inputs[windowed].cells)
        return self._caches[owner]

    def _new_cache(self, owner: int, shape: LayerShape, cells: int) -> tuple[Tensor, Tensor | None]:
        net = self._net
        place = net.store(net.launch.cache_place(owner))
        choices, streams = net.launch.choices, net.launch.streams
        keys = stored((shape.heads_kv * shape.key, cells, streams), choices.cache_type_k.upper(), place, weight=False)
        if net.model.mla:
            return keys, None
        width = value_row(net.model, net.launch, shape)
        values = stored((width, cells, streams), choices.cache_type_v.upper(), place, weight=False)
        return keys, values

    def _by_head(self, cache: Tensor, width: int, heads: int) -> Tensor:
        width_bytes = row_bytes(cache.type_name, width)
        return view(cache, width, heads, *cache.ne[1:3], nb=(width_bytes, *cache.nb[1:3]))

    def _by_cell(self, cache: Tensor, width: int, heads: int) -> Tensor:
        """Values as they lie without flash attention: the cells of one number of one head side by side."""
        cells, streams = cache.ne[1:3]
        cell_bytes = row_bytes(cache.type_name, cells)
        return view(cache, cells, heads, width, streams, nb=(cell_bytes * width, cell_bytes, cell_bytes * cache.ne[0]))

    def _merged(self, cache: Tensor) -> Tensor:
        return reshape(cache, cache.ne[0], cache.ne[1] * cache.ne[2]) if cache.ne[2] > 1 else cache

    def _store_keys(self, keys: Tensor, key: Tensor, inputs: _Inputs) -> None:
        rows = view(key, key.ne[0] * key.ne[1], key.ne[2], nb=key.nb[2:3])
        self._net.graph.expand(set_rows(self._merged(keys), rows, inputs.key_slots))

    def _store_values(self, values: Tensor, value: Tensor, inputs: _Inputs) -> None:
        net = self._net
        ne = (value.ne[0] * value.ne[1], value.ne[2])
        if net.launch.choices.flash_attention:
            net.graph.expand(set_rows(self._merged(values), view(value, *ne, nb=value.nb[2:3]), inputs.value_slots))
            return
        rows = reshape(value, *ne) if value.contiguous else cont(value, ne)
        if ne[0] < values.ne[0]:
            rows = make("PAD", (values.ne[0], ne[1]), rows)
        flat = reshape(values, 1, values.elements)
        net.graph.expand(set_rows(flat, reshape(rows, 1, rows.elements), inputs.value_slots))

    def _attend(self, layer: int, sides: _Sides, decompress: Tensor | None) -> Tensor:
        net, query = self._net, sides.query
        streams = sides.key.ne[3]
        each = query.ne[2] // streams
        query = view(query, *query.ne[:2], each, streams, nb=(*query.nb[1:3], query.nb[2] * each))
        query, key, value = (permute(tensor, 0, 2, 1, 3) for tensor in (query, sides.key, sides.value))
        sides = _Sides(query, key, value, sides.mask, transposed=sides.transposed)
        found = net.find(f"blk.{layer}.attn_sinks.weight")
        sinks = [found] if found is not None else []
        if net.launch.flash:
            result = self._flash(layer, sides, sinks)
            if decompress is not None:
                result = permute(mul_mat(decompress, permute(result, 0, 2, 1, 3)), 0, 2, 1, 3)
                result = cont(result)
            result = reshape(result, result.ne[0] * result.ne[1], result.ne[2] * result.ne[3])
        else:
            result = self._soft(sides, sinks, decompress)
            if net.launch.choices.host_kv and net.launch.on_devices:
                result.backend = net.store(-1)
        net.graph.expand(result)
        return result

    def _flash(self, layer: int, sides: _Sides, sinks: list[Tensor]) -> Tensor:
        query = sides.query
        key, value = (cast(side, "F16") if side.type_name == "F32" else side for side in (sides.key, sides.value))
        ne = (value.ne[0], query.ne[2], query.ne[1], query.ne[3])
        result = make("FLASH_ATTN_EXT", ne, query, key, value, sides.mask, *sinks)
        self._net.fused.append((layer, result))
        return result

    def _soft(self, sides: _Sides, sinks: list[Tensor], decompress: Tensor | None) -> Tensor:
        scores = mul_mat(sides.key, sides.query)
        if "attn_logit_softcapping" in self._net.model.scales:
            for op in ("SCALE", "UNARY", "SCALE"):
                scores = like(op, scores)
        scores = like("SOFT_MAX", scores, sides.mask, *sinks)
        value = sides.value if sides.transposed else cont(transpose(sides.value))
        result = mul_mat(value, scores)
        if decompress is not None:
            result = mul_mat(decompress, result)
        result = permute(result, 0, 2, 1, 3)
        return cont(result, (result.ne[0] * result.ne[1], result.ne[2] * result.ne[3]))
