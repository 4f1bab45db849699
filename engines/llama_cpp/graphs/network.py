"""Pieces that all networks are built of: weights, inputs, norms, projections, feed-forward parts, experts.

Facts from llama.cpp's ``llama-graph.cpp``; the order of operations decides the bytes, so it is kept as it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.llama_cpp.graphs.ops import (
    cont,
    get_rows,
    like,
    make,
    mul_mat,
    mul_mat_id,
    reshape,
    set_rows,
    sum_rows,
    top_k,
    view,
)
from engines.llama_cpp.graphs.tensors import Graph, Tensor, new_input, stored
from engines.llama_cpp.memory_launch import HOST, Launch
from engines.llama_cpp.memory_model import ModelShape

# Builds since this number have a path for batches of tokens and embeddings mixed, and allot its buffers always. Of the
# published sources b11368 lacks it and b11401 has it.
MIXED_SINCE = 11369
# State-space layers project before they part the sequences: not yet in b10568, but in b10688.
_FLAT_SINCE = 10569
_DEVICE_ROWS = 32
_MOST_EXPERTS = 512  # of a token; llama.cpp knows no more experts at all
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_FACTORS_WITHOUT_WINDOW = frozenset({"gemma4"})
SILU, RELU_SQUARED = "silu", "relu squared"
SOFTMAX, SIGMOID, SOFTMAX_LATE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Batch:
    """What one graph computes: tokens of some sequences, and for how many of them logits."""

    tokens: int
    sequences: int
    outputs: int

    @property
    def sequence_tokens(self) -> int:
        """Tokens of each sequence."""
        return self.tokens // self.sequences


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen: ``gating`` by its number in the header, weights normed and scaled or not."""

    gating: int = SOFTMAX
    normed: bool = True
    scaled: bool = False


class UnknownNetworkError(Exception):
    """A network with parts that are not modelled here."""


class Network:
    """A graph that is being built, and what it is built from.

    Attributes:
        mixed: the build has a path for batches of tokens and embeddings mixed, and what came with it.
        flat: state-space layers project before they part the sequences.
        layers: indices of the layers to build.
        fuses_delta: gated delta nets are one operation.
        fused: those operations, each with its layer.
    """

    def __init__(
        self,
        model: ModelShape,
        launch: Launch,
        placed: Mapping[str, int],
        batch: Batch,
        *,
        layers: Sequence[int] | None = None,
        fuses_delta: bool = True,
    ) -> None:
        self.model = model
        self.launch = launch
        self.batch = batch
        self.graph = Graph()
        self.layers = range(len(model.layers)) if layers is None else layers
        self.fuses_delta = fuses_delta
        self.fused: list[tuple[int, Tensor]] = []
        number = launch.choices.build_number
        self.mixed = number is None or number >= MIXED_SINCE
        self.flat = number is None or number >= _FLAT_SINCE
        self.rms = "attention.layer_norm_rms_epsilon" in model.scales
        self._placed = placed
        self._weights: dict[str, Tensor] = {}
        self._rows: Tensor | None = None
        self._positions: Tensor | None = None

    # weights ----------------------------------------------------------------------------------------------------

    def store(self, place: int) -> int:
        """Index of the backend whose buffer is at a place; the host is the last."""
        return len(self.launch.choices.devices) if place == HOST else place

    def find(self, name: str) -> Tensor | None:
        """A weight, if the model has it; a second copy by ``name@place``."""
        known = self._weights.get(name)
        if known is not None:
            return known
        tensor = self.model.tensors.get(name.split("@", maxsplit=1)[0])
        if tensor is None:
            return None
        weight = stored(tensor.dims, tensor.type_name, self.store(self._placed.get(name, HOST)), weight=True)
        self._weights[name] = weight
        return weight

    def need(self, name: str) -> Tensor:
        """A weight that the network can't do without."""
        weight = self.find(name)
        if weight is None:
            raise UnknownNetworkError(name)
        return weight

    def has(self, name: str) -> bool:
        """Whether the model has a weight."""
        return name in self.model.tensors

    def output_weight(self) -> Tensor:
        """The output's weight: its own, or the token embedding's second copy."""
        if not self.model.tied:
            return self.need("output.weight")
        name = f"token_embd.weight@{self.launch.places[-1]}"
        return self.need(name if name in self._placed else "token_embd.weight")

    def frequencies(self, layer: int) -> Tensor | None:
        """Rope factors, from the copy beside the layer."""
        if self.model.architecture in _FACTORS_WITHOUT_WINDOW and self.model.layers[layer].window is not None:
            return None
        name = next((name for name in _FACTORS if self.has(name)), _FACTORS[0])
        copy = f"{name}@{self.launch.places[layer]}"
        return self.find(copy if copy in self._placed else name)

    # inputs -----------------------------------------------------------------------------------------------------

    def positions(self) -> Tensor:
        """Positions of the tokens; four numbers each where the rope has sections."""
        if self._positions is None:
            each = 4 if self.model.architecture in {"qwen35", "qwen35moe", "qwen2vl", "qwen3vl", "qwen3vlmoe"} else 1
            self._positions = new_input((self.batch.tokens * each,), "I32")
        return self._positions

    def output_rows(self, tensor: Tensor) -> Tensor:
        """Only the rows for which logits are computed."""
        if self._rows is None:
            self._rows = new_input((self.batch.outputs,), "I32")
        return get_rows(tensor, self._rows)

    def embeddings(self, *, scale_rows: bool = False) -> Tensor:
        """Token embeddings; the paths for given embeddings and for mixed batches are allotted too."""
        batch, width = self.batch, self.model.embedding
        table = self.need("token_embd.weight")
        tokens = get_rows(table, new_input((batch.tokens,), "I32"))
        given = new_input((width, batch.tokens))
        self.graph.expand(tokens)
        self.graph.expand(given)
        if self.mixed:
            ids = new_input((batch.tokens,), "I32")
            slots = new_input((batch.tokens,), "I64")
            base = new_input((width, batch.tokens))
            self.graph.expand(set_rows(like("DUP", base), get_rows(table, ids), slots))
        result = tokens
        if "embedding_scale" in self.model.scales:
            result = like("SCALE", result)
        if scale_rows:
            # Newer builds scale row by row, so that given embeddings can stay as they are.
            result = like("MUL", result, new_input((1, batch.tokens))) if self.mixed else like("SCALE", result)
        self.graph.expand(result)
        return result

    # pieces -----------------------------------------------------------------------------------------------------

    def norm(self, source: Tensor, name: str, *, layer: int | None = None, rms: bool | None = None) -> Tensor:
        """A norm with its weight and bias; ``name`` without the suffix, and the weight may lack."""
        rms = self.rms if rms is None else rms
        result = like("RMS_NORM" if rms else "NORM", source)
        weight, bias = self.find(name + ".weight"), self.find(name + ".bias")
        if weight is None:
            weight = self.find(name)
        self._pin(result, layer, has_weight=weight is not None or bias is not None)
        if weight is not None:
            result = like("MUL", result, weight)
        return result if bias is None else like("ADD", result, bias)

    def _pin(self, tensor: Tensor, layer: int | None, *, has_weight: bool) -> None:
        """llama.cpp keeps norms with their layer where all layers are on devices, or the batch is small."""
        if layer is None or not has_weight or not self.launch.on_devices:
            return
        if self.batch.tokens < _DEVICE_ROWS or self.launch.is_whole:
            tensor.backend = self.store(self.launch.places[layer])

    def linear(self, source: Tensor, name: str) -> Tensor:
        """A projection, with its bias if the model has one."""
        result = mul_mat(self.need(name + ".weight"), source)
        bias = self.find(name + ".bias")
        return result if bias is None else like("ADD", result, bias)

    def rope(self, source: Tensor, layer: int) -> Tensor:
        """Rotary positions."""
        factors = self.frequencies(layer)
        return like("ROPE", source, self.positions(), *([factors] if factors is not None else []))

    def feed_forward(self, source: Tensor, prefix: str, activation: str = SILU, suffix: str = "") -> Tensor:
        """The dense part: gated, ungated, or with the gate inside the upward weight."""
        up_name, gate_name, down_name = (f"{prefix}.ffn_{part}{suffix}" for part in ("up", "gate", "down"))
        up = self.linear(source, up_name)
        down = self.need(down_name + ".weight")
        if self.has(gate_name + ".weight"):
            gate = self.linear(source, gate_name)
            hidden = like("GLU", gate, up)
        elif up.ne[0] == 2 * down.ne[0]:
            hidden = make("GLU", (down.ne[0], *up.ne[1:]), up)
        else:
            hidden = like("UNARY", up)
            if activation == RELU_SQUARED:
                hidden = like("SQR", hidden)
        return self.linear(hidden, down_name)

    # experts ----------------------------------------------------------------------------------------------------

    def experts(self, source: Tensor, prefix: str, routing: Routing, logits: Tensor | None = None) -> Tensor:
        """The expert part: routing, the chosen experts, and their weighted sum."""
        used = self.model.number("expert_used_count")
        if not 0 < used <= _MOST_EXPERTS or self.model.number("expert_group_count") > 1:
            raise UnknownNetworkError(prefix)
        if logits is None:
            logits = self.linear(source, f"{prefix}.ffn_gate_inp")
        chosen, weights = self._route(logits, prefix, routing, used)
        self.graph.expand(weights)
        rows = reshape(source, source.ne[0], 1, source.ne[1])
        mixed = self._expert(self._hidden(rows, prefix, chosen), f"{prefix}.ffn_down_exps", chosen)
        mixed = like("MUL", mixed, weights)
        self.graph.expand(mixed)
        parts = [view(mixed, mixed.ne[0], mixed.ne[2], nb=mixed.nb[2:3]) for _ in range(used)]
        for part in parts:
            self.graph.expand(part)
        total = parts[0]
        for part in parts[1:]:
            total = like("ADD", total, part)
            self.graph.expand(total)
        return cont(total) if used == 1 else total

    def _route(self, logits: Tensor, prefix: str, routing: Routing, used: int) -> tuple[Tensor, Tensor]:
        count, tokens = logits.ne[0], logits.ne[1]
        kinds = {SOFTMAX: "SOFT_MAX", SIGMOID: "UNARY"}
        odds = like(kinds[routing.gating], logits) if routing.gating in kinds else logits
        bias = self.find(f"{prefix}.exp_probs_b.bias") or self.find(f"{prefix}.exp_probs_b")
        chosen = top_k(odds if bias is None else like("ADD", odds, bias), used)
        weights = get_rows(reshape(odds, 1, count, tokens), chosen)
        if routing.gating == SOFTMAX_LATE:
            flat = like("SOFT_MAX", reshape(weights, used, tokens))
            weights = reshape(flat, 1, used, tokens)
        if routing.normed:
            flat = reshape(weights, used, tokens)
            total = like("CLAMP", sum_rows(flat))
            weights = reshape(like("DIV", flat, total), 1, used, tokens)
        return chosen, like("SCALE", weights) if routing.scaled else weights

    def _expert(self, source: Tensor, name: str, chosen: Tensor) -> Tensor:
        result = mul_mat_id(self.need(name + ".weight"), source, chosen)
        bias = self.find(name + ".bias")
        return result if bias is None else like("ADD_ID", result, bias, chosen)

    def _hidden(self, rows: Tensor, prefix: str, chosen: Tensor) -> Tensor:
        if self.has(f"{prefix}.ffn_gate_up_exps.weight"):
            both = self._expert(rows, f"{prefix}.ffn_gate_up_exps", chosen)
            half = (both.ne[0] // 2, both.ne[1], both.ne[2])
            return make("GLU", half, *(view(both, *half, nb=both.nb[1:3]) for _ in range(2)))
        up = self._expert(rows, f"{prefix}.ffn_up_exps", chosen)
        if self.has(f"{prefix}.ffn_gate_exps.weight"):
            return like("GLU", self._expert(rows, f"{prefix}.ffn_gate_exps", chosen), up)
        return like("UNARY", up)
