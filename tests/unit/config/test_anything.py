"""Whatever a file holds, the answer is a config or its problems."""

from __future__ import annotations

from typing import Any

import orjson
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.config.load import parse_config
from supervisor.config.schema import Config
from supervisor.config.suggest import keys_at
from supervisor.errors import ConfigError
from tests.unit.config.helpers import ENV, FILE

_PLACES: tuple[tuple[str | int, ...], ...] = (
    (),
    ("listen",),
    ("auth",),
    ("auth", "callers", 0),
    ("host",),
    ("host", "reserve"),
    ("engines", "llama.cpp"),
    ("engines", "llama.cpp", "defaults"),
    ("engines", "llama.cpp", "builds", 0),
    ("models", "m"),
    ("models", "m", "launch"),
    ("broker", "queue"),
    ("supervision", "restart"),
)
_KEYS = sorted({key for place in _PLACES for key in keys_at(place, {})} | {"llama.cpp", "m", "CUDA0", "<<", "$"})
_WORDS = [
    *(
        "auto",
        "never",
        "10m",
        "1:30",
        "512MiB",
        "0",
        "",
        "no",
        "${env:HOME}",
        "${env:X}",
        "${",
        "~",
        "~x/y",
        "llama.cpp",
    ),
    *("chat", "use", "0.0.0.0", "::1%lo", "f16", "a b", "a\nb", "\ud7ff", "9" * 400 + "d", "9" * 400 + "GiB", "1e999"),
]
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(_WORDS),
    st.text(max_size=8),
)
_keys = st.one_of(st.sampled_from(_KEYS), st.sampled_from(_KEYS), st.text(max_size=4), st.integers(), st.booleans())
_trees = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=5)),
    max_leaves=20,
)


def _put(tree: dict[Any, Any], place: tuple[str | int, ...], value: Any) -> dict[Any, Any]:
    """``value`` at a place of the schema."""
    if not place:
        return {**tree, **value} if isinstance(value, dict) else tree
    for step in reversed(place):
        value = [value] if isinstance(step, int) else {step: value}
    return {**tree, **value}


def _answer(data: bytes) -> None:
    """A config, or problems that fit on a line each and can be printed; no other exception."""
    try:
        answer: Config | ConfigError = parse_config(data, FILE, ENV)
    except ConfigError as error:
        answer = error
    if isinstance(answer, Config):
        return
    assert answer.code == "config_invalid"
    assert answer.facts["problems"]
    for problem in answer.facts["problems"]:
        assert "\n" not in str(problem)
        orjson.dumps([problem.path, problem.message, problem.suggestion, problem.line])


@settings(max_examples=200, deadline=None)
@given(tree=_trees)
def test_any_tree_is_answered(tree: Any) -> None:
    """Trees of any shape, with the schema's own keys in the wrong places."""
    _answer(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace"))


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(_PLACES), value=_trees, other=st.sampled_from(_PLACES), more=_trees)
def test_any_value_at_any_place_is_answered(
    place: tuple[str | int, ...], value: Any, other: tuple[str | int, ...], more: Any
) -> None:
    """A config that is right but for one or two places."""
    tree = _put(_put({"version": 1}, place, value), other, more)
    _answer(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode("utf-8", "replace"))


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(
            [
                "version: 1",
                "a: &x",
                "  - *x",
                "b: {",
                "}",
                "[",
                "'",
                "? ",
                ": ",
                "\t",
                "!!x ",
                "<<: *x",
                "---",
                "%",
                "|",
                "é",
            ]
        )
    )
)
def test_any_text_is_answered(lines: list[str]) -> None:
    """Pieces of YAML in any order."""
    _answer("\n".join(lines).encode())


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_answered(data: bytes) -> None:
    """Not even text."""
    _answer(data)
