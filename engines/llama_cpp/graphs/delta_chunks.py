"""A gated delta net by chunks of tokens, as llama.cpp computes it where the fused operation can't run with its layer.

Facts from ``build_delta_net_chunking``.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.ops import cont, like, make, mul_mat, permute, reshape, transpose, view
from engines.llama_cpp.graphs.tensors import Tensor

_CHUNK = 64


def delta_chunks(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and new state; shapes as the fused operation takes them."""
    width, heads, tokens, sequences = value.ne
    sides = [permute(side, 0, 2, 1, 3) for side in (like("SCALE", query), key, value, decay, rate)]
    padded = -(-tokens // _CHUNK) * _CHUNK
    query, key, value, decay, rate = (make("PAD", (side.ne[0], padded, *side.ne[2:]), side) for side in sides)
    weighted, written = like("MUL", value, rate), like("MUL", key, rate)
    chunks, rows = padded // _CHUNK, heads * sequences
    query, key, written, value, weighted = (
        reshape(side, side.ne[0], _CHUNK, chunks, side.ne[2] * side.ne[3])
        for side in (query, key, written, value, weighted)
    )
    decay = reshape(decay, decay.ne[0], _CHUNK, chunks, rows)
    total = like("CUMSUM", cont(transpose(decay)))
    mask = _mask(total, chunks, rows)
    attended = like("TRI", like("MUL", mul_mat(key, query), mask))
    solved = _solved(like("TRI", like("MUL", mul_mat(key, written), mask)))
    value = mul_mat(cont(transpose(weighted)), solved)
    grown = like("UNARY", total)
    past = mul_mat(like("MUL", cont(transpose(written)), grown), solved)
    queried = like("MUL", query, cont(transpose(grown)))
    last = cont(view(total, 1, *total.ne[1:], nb=total.nb[1:]))
    kept = transpose(like("UNARY", last))
    rest = like("UNARY", like("SUB", total, last))
    stored = cont(transpose(like("MUL", key, cont(transpose(like("UNARY", rest))))))
    state = reshape(state, width, width, 1, rows)
    turned = cont(transpose(value))
    for _ in range(chunks):
        fresh = like("SUB", _slice(turned), mul_mat(_slice(past), state))
        inside = mul_mat(fresh, _slice(attended))
        output = like("ADD", mul_mat(state, _slice(queried)), inside)
        value = Tensor("SET", value.ne, value.type_name, (value, output), value, value.nb)
        added = mul_mat(_slice(stored), fresh)
        state = like("ADD", like("MUL", state, _slice(kept)), added)
    step = width * 4
    shown = view(value, width, tokens, heads, sequences, nb=(step, step * padded, step * padded * heads))
    return permute(shown, 0, 2, 1, 3), reshape(state, width, width, heads, sequences)


def _mask(total: Tensor, chunks: int, rows: int) -> Tensor:
    """How much of one token is left at another one of its chunk."""
    later = make("REPEAT", (_CHUNK, _CHUNK, chunks, rows), reshape(total, 1, _CHUNK, chunks, rows))
    return like("UNARY", like("TRI", like("SUB", later, total)))


def _solved(lower: Tensor) -> Tensor:
    first = view(lower, _CHUNK)
    identity = make("DIAG", (_CHUNK, _CHUNK), like("FILL", first))
    left = like("ADD", lower, identity)
    right = like("UNARY", lower)
    return like("ADD", make("SOLVE_TRI", right.ne, left, right), identity)


def _slice(source: Tensor) -> Tensor:
    """One chunk."""
    return view(source, *source.ne[:2], 1, source.ne[3], nb=source.nb[1:])
