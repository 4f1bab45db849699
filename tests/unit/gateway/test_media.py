from __future__ import annotations

from typing import Any

import pytest

from engines.contract import LaunchSettings
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.settings import LlamaCppSettings
from tests.fakes.gateway import running_gateway
from tests.fakes.generation import FakeGeneration
from tests.fakes.played_engine import PlayedEngine, whole

DOT = "iVBORw0KGgo="
PARTS = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}}]
SOUND = [{"type": "input_audio", "input_audio": {"data": DOT, "format": "wav"}}]
SOURCE = {"type": "base64", "media_type": "image/png", "data": DOT}


def _said(content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": content, **more}]}


MESSAGE = _said([{"type": "image", "source": SOURCE}]) | {"max_tokens": 9}
ITEM = {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{DOT}"}]}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", _said(PARTS)),
    ("/v1/chat/completions", _said(SOUND) | {"stream": True}),
    ("/v1/messages", MESSAGE),
    ("/v1/messages/count_tokens", MESSAGE),
    ("/v1/responses", {"model": "demo", "input": [ITEM]}),
    ("/api/chat", _said("what is it?", images=[DOT])),
    ("/api/generate", {"model": "demo", "prompt": "what is it?", "images": [DOT]}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_picture_for_a_model_that_reads_text_only(path: str, body: dict[str, Any]) -> None:
    """It is a 400 in every API's form, in words that say what to do, and nothing is started."""
    adapter = FakeGeneration(media=False)
    async with running_gateway(PlayedEngine(whole(b"{}")), adapter=adapter) as gateway:
        async with gateway.client.post(path, json=body) as answer:
            assert (answer.status, "reads text only" in await answer.text()) == (400, True)
        assert not gateway.broker.leases


def test_what_makes_llama_server_read_pictures() -> None:
    """A projector in the extra arguments, in any spelling; nothing else."""
    adapter = LlamaCppAdapter()
    for extra in (("--mmproj", "p.gguf"), ("-mm", "p.gguf"), ("--mmproj=p.gguf",)):
        assert adapter.takes_media(LlamaCppSettings(extra_args=extra), None)
    assert not adapter.takes_media(LlamaCppSettings(extra_args=("--no-mmproj",)), None)
    assert not adapter.takes_media(LlamaCppSettings(), None)
    assert not adapter.takes_media(LaunchSettings(), None)
