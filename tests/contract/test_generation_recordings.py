from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from engines.contract import EngineKind
from engines.registry import adapter_for
from supervisor.gateway.translate.fold import Fold
from supervisor.gateway.translate.sse import DONE, SseSplitter, data_of

DATA = Path(__file__).parents[1] / "data" / "gateway"
NAMES = sorted(path.stem for path in DATA.glob("*.sse"))


def _data(name: str) -> list[bytes]:
    found = [data_of(frame) for frame in SseSplitter().feed((DATA / f"{name}.sse").read_bytes())]
    return [data for data in found if data is not None]


@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_tells_progress_from_content(name: str) -> None:
    """In every recorded stream, exactly the frames with a progress report are progress to the adapter."""
    adapter = adapter_for(EngineKind.LLAMA_CPP)
    for data in _data(name):
        parsed = orjson.loads(data) if data != DONE else {}
        assert adapter.is_progress(data) == ("prompt_progress" in parsed)


@pytest.mark.parametrize("name", NAMES)
def test_openais_sdk_takes_folded_answers(name: str) -> None:
    """The SDK's own types accept what clients get that asked for no stream."""
    adapter = adapter_for(EngineKind.LLAMA_CPP)
    text = name.startswith("text")
    fold = Fold("text_completion" if text else "chat.completion")
    for data in _data(name):
        if data != DONE and not adapter.is_progress(data):
            fold.feed(orjson.loads(data))
    if text:
        answer = Completion.model_construct(**fold.result())
        assert answer.usage is not None
    else:
        checked = ChatCompletion.model_validate(fold.result() | {"choices": _without_logprobs(fold.result())})
        assert checked.usage is not None
        assert checked.usage.completion_tokens > 0


def _without_logprobs(answer: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    """llama-server leaves out OpenAI's `refusal` there; that is its own form and passes as it is."""
    return [{key: value for key, value in choice.items() if key != "logprobs"} for choice in answer["choices"]]
