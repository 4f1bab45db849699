from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.translate.fold import Fold
from supervisor.gateway.translate.sse import DONE, SseSplitter, data_of

DATA = Path(__file__).parents[2] / "data" / "gateway"
# What differs between two runs of the same request.
_BY_RUN = {"id", "created"}
_MEASURED = {"prompt_ms", "prompt_per_token_ms", "prompt_per_second"}
_MEASURED |= {"predicted_ms", "predicted_per_token_ms", "predicted_per_second"}


def _folded(name: str) -> dict[str, Any]:
    fold = Fold("text_completion" if name.startswith("text") else "chat.completion")
    for frame in SseSplitter().feed((DATA / f"{name}.sse").read_bytes()):
        data = data_of(frame)
        if data is not None and data != DONE and b'"prompt_progress"' not in data:
            fold.feed(orjson.loads(data))
    return fold.result()


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in answer.items() if key not in _BY_RUN}
    kept["timings"] = {key: value for key, value in answer["timings"].items() if key not in _MEASURED}
    for choice in kept["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call.pop("id")
    return kept


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("*.sse")))
def test_a_folded_stream_is_the_engines_own_whole_answer(name: str) -> None:
    """Content, reasoning, tool calls, logprobs, choices, finish reasons, usage and timings: as the engine says them."""
    whole = orjson.loads((DATA / f"{name}.json").read_bytes())
    folded = _folded(name)
    assert _comparable(folded) == _comparable(whole)
    assert folded.keys() == whole.keys()
    assert folded["timings"].keys() == whole["timings"].keys()


_texts = st.text(max_size=5)
_calls = st.lists(st.tuples(_texts, _texts), max_size=3)


def _cut(text: str, at: int) -> list[str]:
    return [text[: at % (len(text) + 1)], text[at % (len(text) + 1) :]]


@given(
    choices=st.lists(st.tuples(_texts, _texts, _calls), min_size=1, max_size=3),
    at=st.integers(0, 9),
    order=st.randoms(use_true_random=False),
)
def test_pieces_of_several_choices_find_their_place(
    choices: list[tuple[str, str, list[tuple[str, str]]]], at: int, order: Any
) -> None:
    """Choices and tool calls are put together by their index, however their pieces mix."""
    queues: list[list[dict[str, Any]]] = []
    for content, reasoning, calls in choices:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        deltas += [{"reasoning_content": piece} for piece in _cut(reasoning, at)]
        deltas += [{"content": piece} for piece in _cut(content, at)]
        for number, (name, arguments) in enumerate(calls):
            first, second = _cut(arguments, at)
            function = {"name": name, "arguments": first}
            deltas.append({"tool_calls": [{"index": number, "id": f"c{number}", "function": function}]})
            deltas.append({"tool_calls": [{"index": number, "function": {"arguments": second}}]})
        queues.append(deltas)
    fold = Fold("chat.completion")
    while any(queues):
        index = order.choice([number for number, queue in enumerate(queues) if queue])
        fold.feed({"choices": [{"index": index, "delta": queues[index].pop(0), "finish_reason": None}]})
    result = fold.result()
    assert [choice["index"] for choice in result["choices"]] == list(range(len(choices)))
    for choice, (content, reasoning, calls) in zip(result["choices"], choices, strict=True):
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == (content, reasoning)
        got = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        assert got == calls


def test_refused_logprobs_are_kept_beside_those_of_the_content() -> None:
    """Both lists of OpenAI's logprobs grow on their own; a null one stays null until it has something."""
    fold = Fold("chat.completion")
    fold.feed({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [1], "refusal": None}}]})
    fold.feed({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [2], "refusal": [3]}}]})
    assert fold.result()["choices"][0]["logprobs"] == {"content": [1, 2], "refusal": [3]}


def test_a_stream_without_choices_folds_to_none() -> None:
    """An answer that said nothing has no choices, and invents no usage."""
    assert Fold("text_completion").result() == {"object": "text_completion", "choices": []}
