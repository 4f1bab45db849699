"""The corpora: texts of many model families, with the calls that they hold."""

from __future__ import annotations

from typing import Any

import pytest

from engines.tool_calls import Call, Recovered, Recoverer, recover
from tests.unit.tool_calls.cases import TOOLS, one_space, rows

HANDED = rows("handed.jsonl")
FORMS = rows("forms.jsonl")
CALLING = [case for case in HANDED if case["expect"]["calls"]]


def _calls(written: list[dict[str, Any]]) -> tuple[Call, ...]:
    return tuple(Call(call["name"], call["arguments"]) for call in written)


def _types(value: object) -> object:
    """The value with its types, since 1 and True are equal."""
    if isinstance(value, dict):
        return {key: _types(member) for key, member in value.items()}
    return [_types(member) for member in value] if isinstance(value, list) else (type(value), value)


def _check(recovered: Recovered, expect: dict[str, Any]) -> None:
    assert recovered.calls == _calls(expect["calls"])
    for call, written in zip(recovered.calls, expect["calls"], strict=True):
        assert _types(call.arguments) == _types(written["arguments"])
    if expect["calls"]:
        assert one_space(recovered.content) == one_space(expect["content"])
    else:
        assert recovered.content == expect["content"]
    assert recovered.complete is expect["complete"]
    assert recovered.provenance == expect["provenance"]


@pytest.mark.parametrize("case", HANDED, ids=lambda case: str(case["id"]))
def test_handed_case(case: dict[str, Any]) -> None:
    """Each recorded text gives the calls, content and verdict that its line expects."""
    recovered = recover(case["text"], case["tools"], case["reasoning"])
    _check(recovered, case["expect"])
    assert list(recovered.missing_required) == case["expect"]["missing_required"]


@pytest.mark.parametrize("case", [case for case in HANDED if "chunks" in case], ids=lambda case: str(case["id"]))
def test_handed_case_in_chunks(case: dict[str, Any]) -> None:
    """In the recorded chunks the result is that of the whole text, and what was passed on is part of its content."""
    recoverer = Recoverer(case["tools"], case["reasoning"])
    passed = "".join(recoverer.feed(chunk) for chunk in case["chunks"])
    recovered = recoverer.end()
    _check(recovered, case["expect"])
    assert passed + recoverer.rest == recovered.content


@pytest.mark.parametrize("case", FORMS, ids=lambda case: str(case["id"]))
def test_form(case: dict[str, Any]) -> None:
    """Each form of each family, clean, damaged, cut, and only spoken of."""
    _check(recover(case["text"], TOOLS), case)


@pytest.mark.parametrize("case", FORMS, ids=lambda case: str(case["id"]))
@pytest.mark.parametrize("size", [1, 4, 33])
def test_form_in_chunks(case: dict[str, Any], size: int) -> None:
    """The same in chunks of any size; all that was passed on is the beginning of the content."""
    text = case["text"]
    recoverer = Recoverer(TOOLS)
    passed = "".join(recoverer.feed(text[at : at + size]) for at in range(0, len(text), size))
    recovered = recoverer.end()
    _check(recovered, case)
    assert passed + recoverer.rest == recovered.content


@pytest.mark.parametrize("case", CALLING, ids=lambda case: str(case["id"]))
def test_a_cut_text_invents_nothing(case: dict[str, Any]) -> None:
    """Cut anywhere, a text gives no argument that the whole text does not give, value for value."""
    whole = case["expect"]["calls"]
    for end in range(len(case["text"])):
        for call, expected in zip(recover(case["text"][:end], case["tools"]).calls, whole, strict=False):
            assert call.name == expected["name"]
            assert _types(call.arguments).items() <= _types(expected["arguments"]).items()  # type: ignore[attr-defined]  # both are dicts
