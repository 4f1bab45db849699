"""What holds of caches, with the real cache objects of ``mlx_lm``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.mlx.server.layers import cached_prefix, copied, cuttable, matches_layout, size_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("mlx_here"),
    pytest.mark.filterwarnings("ignore"),  # what other people's packages deprecate
]


def filled(kind: str, tokens: int) -> Any:
    """One layer's cache that holds so many tokens."""
    import mlx.core as mx  # noqa: PLC0415  where there is MLX
    from mlx_lm.models import cache  # noqa: PLC0415

    if kind == "list":
        return cache.CacheList(filled("plain", tokens), filled("plain", tokens))
    if kind == "arrays":
        return cache.ArraysCache(2)
    layer = cache.RotatingKVCache(max_size=16) if kind == "rotating" else cache.KVCache()
    if tokens:
        layer.update_and_fetch(mx.ones((1, 2, tokens, 64)), mx.ones((1, 2, tokens, 64)))
    return layer.to_quantized(group_size=64, bits=4) if kind == "quantised" else layer


KINDS = st.sampled_from(["plain", "rotating", "quantised", "list", "arrays"])


@settings(max_examples=60)
@given(st.lists(st.tuples(KINDS, st.integers(0, 24)), max_size=4), st.integers(0, 30))
def test_only_what_is_sure_is_kept(rows: list[tuple[str, int]], fed: int) -> None:
    """The first tokens that all layers hold, if they say so, agree, and were fed; else nothing."""
    layers = [filled(kind, tokens) for kind, tokens in rows]
    tokens = list(range(fed))
    held = {None if kind == "arrays" else count for kind, count in rows}
    (count,) = held if len(held) == 1 else (None,)
    expected = tuple(tokens[:count]) if count is not None and 0 < count <= fed else None
    assert cached_prefix(layers, tokens) == expected


@settings(max_examples=60)
@given(st.lists(KINDS, max_size=3), st.lists(KINDS, max_size=3))
def test_only_the_very_layout_is_taken(ours: list[str], theirs: list[str]) -> None:
    """Layer by layer the same kind, and as many."""
    matches = matches_layout([filled(kind, 4) for kind in ours], [filled(kind, 0) for kind in theirs])
    flat = [[kind for one in kinds for kind in (["plain"] * 2 if one == "list" else [one])] for kinds in (ours, theirs)]
    assert matches is (bool(ours) and flat[0] == flat[1])


def test_the_one_wrapper_that_is_known() -> None:
    """The buffered form of a rotating cache is taken for it; a batch's form is not."""
    from mlx_lm.models.cache import BatchKVCache, BatchRotatingKVCache, RotatingKVCache  # noqa: PLC0415

    class BufferedRotatingKVCache(RotatingKVCache):  # type: ignore[misc]  # Any, to mypy
        """As another library has it."""

    class OtherRotatingKVCache(RotatingKVCache):  # type: ignore[misc]  # Any, to mypy
        """Any other subclass."""

    expected = [RotatingKVCache(max_size=8)]
    assert matches_layout([BufferedRotatingKVCache(max_size=8)], expected)
    assert not matches_layout([OtherRotatingKVCache(max_size=8)], expected)
    assert not matches_layout([BatchRotatingKVCache(8, [0])], expected)
    assert not matches_layout([BatchKVCache([0])], [filled("plain", 0)])


@settings(max_examples=60)
@given(st.sampled_from(["plain", "quantised", "rotating", "list"]), st.integers(1, 24), st.integers(1, 24))
def test_copies_are_cut_and_the_original_is_not(kind: str, held: int, wanted: int) -> None:
    """A copy has exactly the tokens asked for, or there is none; the original never changes."""
    layers = [filled(kind, held), filled(kind, held)]
    before = cached_prefix(layers, list(range(held)))
    made = copied(layers, wanted)
    possible = wanted <= held and (wanted == held or cuttable(layers))
    assert (made is not None) is possible
    if made is not None:
        assert cached_prefix(made, list(range(held))) == tuple(range(wanted))
        assert made[0] is not layers[0]
    assert cached_prefix(layers, list(range(held))) == before
    assert size_of(layers) > 0
