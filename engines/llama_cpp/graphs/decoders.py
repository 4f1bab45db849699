"""Networks that write text: transformers, state-space models, and mixtures of both.

What a layer has is read from the model's tensors; a few habits that tensors don't show stand in tables. Facts from
llama.cpp's ``src/models``.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.mixers import HALF_QUERY_GATES, AttentionMixers
from engines.llama_cpp.graphs.network import (
    RELU_SQUARED,
    SIGMOID,
    SILU,
    SOFTMAX,
    SOFTMAX_LATE,
    Network,
    Routing,
)
from engines.llama_cpp.graphs.ops import cont, get_rows, like, mul_mat, permute, reshape, transpose, view
from engines.llama_cpp.graphs.recurrent import States, delta_net, mamba, mamba2, short_convolution
from engines.llama_cpp.graphs.tensors import Tensor, new_input

_SCALES_INPUT = frozenset({"gemma", "gemma2"})
_SCALES_INPUT_ROWS = frozenset({"gemma3", "gemma3n", "gemma4"})
_RESIDUAL_FIRST = frozenset({"jamba", "lfm2", "lfm2moe"})
_RESIDUAL_FIRST_AT_END = frozenset({"phi3", "phimoe"})
# They pick the rows for logits after the last layer, so that every layer computes all tokens.
_ROWS_AT_END = frozenset({"gpt-oss", "gemma4", "qwen35", "qwen35moe", "qwen3next", "nemotron_h", "nemotron_h_moe"})
_ROWS_AFTER_RESIDUAL = frozenset({"falcon-h1"})
_ROWS_BEFORE_NORM = frozenset({"gpt-oss"})
_GATED_BY_SIGMOID = frozenset({"glm4moe", "lfm2moe", "nemotron_h_moe", "bailingmoe2", "dots1"})
_NORMS_WEIGHTS = frozenset({"jamba", "gpt-oss", "deepseek2", "glm4moe", "deepseek", "qwen2moe", "olmoe"})


class Decoder:
    """Builds the graph of one network."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.name = net.model.architecture
        self.mixers = AttentionMixers(net)
        self._states: States | None = None
        self._side: Tensor | None = None

    def build(self) -> None:
        """All nodes, the outputs marked.

        Raises:
            UnknownNetworkError: the model lacks a weight that every network of this kind has.
        """
        net = self.net
        cur = net.embeddings(scale_rows=self.name in _SCALES_INPUT_ROWS)
        if self.name in _SCALES_INPUT:
            cur = like("SCALE", cur)
        if net.has("position_embd.weight"):
            cur = like("ADD", cur, get_rows(net.need("position_embd.weight"), net.positions()))
        if net.has("per_layer_token_embd.weight"):
            self._side = self._side_inputs(cur)
        last = len(net.model.layers) - 1
        for layer in net.layers:
            cur = self._layer(cur, layer, cuts=layer == last and self.name not in _ROWS_AT_END)
        self._finish(cur)

    # head and tail ----------------------------------------------------------------------------------------------

    def _side_inputs(self, cur: Tensor) -> Tensor:
        """Gemma's embeddings for each layer: looked up, and mixed with a projection of the input."""
        net = self.net
        width, layers = net.model.number("embedding_length_per_layer_input"), len(net.model.layers)
        tokens = net.batch.tokens
        looked_up = get_rows(net.need("per_layer_token_embd.weight"), new_input((tokens,), "I32"))
        looked_up = like("SCALE", reshape(looked_up, width, layers, tokens))
        net.graph.expand(looked_up)
        side = like("SCALE", mul_mat(net.need("per_layer_model_proj.weight"), cur))
        side = net.norm(reshape(side, width, layers, tokens), "per_layer_proj_norm")
        side = like("SCALE", like("ADD", side, looked_up))
        return cont(permute(side, 0, 2, 1, 3))

    def _finish(self, cur: Tensor) -> None:
        net = self.net
        if self.name in _ROWS_BEFORE_NORM:
            net_outputs = [cur]
            cur = net.output_rows(cur)
        else:
            net_outputs = []
        norm = "output_norm" if net.has("output_norm.weight") else "token_embd_norm"
        cur = net.norm(cur, norm)
        net_outputs.append(cur)
        if self.name in _ROWS_AT_END - _ROWS_BEFORE_NORM:
            cur = net.output_rows(cur)
            net_outputs.append(cur)
        embedded = cur
        skips_logits = self.name in {"lfm2", "lfm2moe"} and net.launch.choices.embeddings
        if not skips_logits:
            cur = self._logits(cur)
            net_outputs.append(cur)
        net.graph.expand(cur)
        pooled = pool(net, embedded)
        for tensor in (*net_outputs, *([pooled] if pooled is not None else [])):
            tensor.is_output = True

    def _logits(self, cur: Tensor) -> Tensor:
        net = self.net
        cur = mul_mat(net.output_weight(), cur)
        if net.has("output.bias"):
            cur = like("ADD", cur, net.need("output.bias"))
        if "final_logit_softcapping" in net.model.scales:
            for op in ("SCALE", "UNARY", "SCALE"):
                cur = like(op, cur)
        elif net.model.scales.get("logit_scale"):
            cur = like("SCALE", cur)
        return cur

    # one layer --------------------------------------------------------------------------------------------------

    def _layer(self, cur: Tensor, layer: int, *, cuts: bool) -> Tensor:
        net, prefix = self.net, f"blk.{layer}"
        before = cur
        normed = net.norm(cur, f"{prefix}.attn_norm", layer=layer) if self._has_norm(layer, "attn_norm") else cur
        if self.name in HALF_QUERY_GATES:
            net.graph.expand(normed)
        cur = self._mixer(before, normed, layer)
        parallel = self._is_parallel(layer)
        late = self.name in _ROWS_AFTER_RESIDUAL
        if cuts and not late:
            cur, before = net.output_rows(cur), net.output_rows(before)
            normed = net.output_rows(normed) if parallel else normed
        if parallel:
            part = net.feed_forward(normed, prefix)
            return like("ADD", like("ADD", part, before), cur)
        if self._norms_after(layer):
            cur = net.norm(cur, f"{prefix}.post_attention_norm", layer=layer)
        if "residual_scale" in net.model.scales:
            cur = like("SCALE", cur)
        first = (before, cur) if self.name in _RESIDUAL_FIRST else (cur, before)
        cur = like("ADD", *first)
        if cuts and late:
            cur = net.output_rows(cur)
        if not self._has_feed_forward(layer):
            return cur
        return self._second_half(cur, layer)

    def _has_norm(self, layer: int, name: str) -> bool:
        net = self.net
        return net.has(f"blk.{layer}.{name}.weight") or net.has(f"blk.{layer}.{name}")

    def _norms_after(self, layer: int) -> bool:
        """A norm of that name follows attention, unless it is all there is before the feed-forward part."""
        both = self._has_norm(layer, "ffn_norm") or not self._has_norm(layer, "attn_norm")
        return both and self._has_norm(layer, "post_attention_norm")

    def _is_parallel(self, layer: int) -> bool:
        has = any(self._has_norm(layer, name) for name in ("ffn_norm", "post_attention_norm"))
        return not has and self._has_feed_forward(layer)

    def _has_feed_forward(self, layer: int) -> bool:
        net, prefix = self.net, f"blk.{layer}"
        if self.name.startswith("nemotron_h"):
            return False
        return net.has(f"{prefix}.ffn_up.weight") or net.has(f"{prefix}.ffn_up_exps.weight")

    def _second_half(self, cur: Tensor, layer: int) -> Tensor:
        net, prefix = self.net, f"blk.{layer}"
        before = cur
        for name in ("ffn_norm", "post_attention_norm"):
            if self._has_norm(layer, name) and not (name != "ffn_norm" and self._norms_after(layer)):
                cur = net.norm(cur, f"{prefix}.{name}", layer=layer)
                break
        cur = self._feed_forward(cur, layer)
        if self._has_norm(layer, "post_ffw_norm"):
            cur = net.norm(cur, f"{prefix}.post_ffw_norm")
        if "residual_scale" in net.model.scales:
            cur = like("SCALE", cur)
        ahead = self.name in _RESIDUAL_FIRST | _RESIDUAL_FIRST_AT_END
        cur = like("ADD", before, cur) if ahead else like("ADD", cur, before)
        if self._side is not None:
            cur = self._add_side(cur, layer)
        if net.has(f"{prefix}.layer_output_scale.weight"):
            cur = like("MUL", cur, net.need(f"{prefix}.layer_output_scale.weight"))
        return cur

    def _add_side(self, cur: Tensor, layer: int) -> Tensor:
        net, prefix = self.net, f"blk.{layer}"
        assert self._side is not None
        part = like("UNARY", mul_mat(net.need(f"{prefix}.inp_gate.weight"), cur))
        part = like("MUL", part, view(self._side, *self._side.ne[:2]))
        part = mul_mat(net.need(f"{prefix}.proj.weight"), part)
        part = net.norm(part, f"{prefix}.post_norm", layer=layer)
        return like("ADD", cur, part)

    def _feed_forward(self, cur: Tensor, layer: int) -> Tensor:
        net, prefix = self.net, f"blk.{layer}"
        if not net.has(f"{prefix}.ffn_gate_inp.weight"):
            activation = RELU_SQUARED if self.name.startswith("nemotron") else SILU
            return net.feed_forward(cur, prefix, activation)
        routed = net.experts(cur, prefix, self._routing())
        if not net.has(f"{prefix}.ffn_up_shexp.weight"):
            return routed
        shared = net.feed_forward(cur, prefix, suffix="_shexp")
        if net.has(f"{prefix}.ffn_gate_inp_shexp.weight"):
            gate = like("UNARY", mul_mat(net.need(f"{prefix}.ffn_gate_inp_shexp.weight"), cur))
            shared = like("MUL", shared, gate)
        return like("ADD", routed, shared)

    def _routing(self) -> Routing:
        model = self.net.model
        default = SIGMOID if self.name in _GATED_BY_SIGMOID else SOFTMAX
        default = SOFTMAX_LATE if self.name == "gpt-oss" else default
        gating = model.number("expert_gating_func") or default
        normed = bool(model.number("expert_weights_norm", int(self.name not in _NORMS_WEIGHTS)))
        scaled = model.scales.get("expert_weights_scale", 0.0) not in {0.0, 1.0}
        return Routing(gating, normed, scaled)

    # mixers -----------------------------------------------------------------------------------------------------

    @property
    def states(self) -> States:
        """Recurrent states, made when first needed."""
        if self._states is None:
            self._states = States(self.net)
        return self._states

    def _mixer(self, before: Tensor, normed: Tensor, layer: int) -> Tensor:
        net, shape, prefix = self.net, self.net.model.layers[layer], f"blk.{layer}"
        if shape.recurrent and shape.attends:
            attended = self.mixers.attend(normed, layer)
            again = net.norm(before, f"{prefix}.attn_norm", layer=layer)
            return like("ADD", attended, mamba2(self.states, again, layer))
        if shape.recurrent:
            return self._recur(normed, layer)
        if shape.attends:
            return self.mixers.attend(normed, layer)
        return self._feed_forward(normed, layer)

    def _recur(self, normed: Tensor, layer: int) -> Tensor:
        prefix = f"blk.{layer}"
        if self.net.has(f"{prefix}.shortconv.conv.weight"):
            return short_convolution(self.states, normed, layer)
        if self.net.has(f"{prefix}.ssm_x.weight"):
            return mamba(self.states, normed, layer)
        if self.net.has(f"{prefix}.ssm_d"):
            return mamba2(self.states, normed, layer)
        return delta_net(self.states, normed, layer)


def pool(net: Network, embedded: Tensor) -> Tensor | None:
    """Token vectors to one a sequence, where embeddings are served."""
    choices, sequences = net.launch.choices, net.batch.sequences
    pooling = choices.pooling or net.model.pooling or ("none" if net.model.causal else "mean")
    if not choices.embeddings or pooling == "none":
        return None
    if pooling == "mean":
        mean = new_input((embedded.ne[1], sequences))
        pooled = mul_mat(cont(transpose(embedded)), mean)
    else:
        pooled = get_rows(embedded, new_input((sequences,), "I32"))
    net.graph.expand(pooled)
    return pooled
