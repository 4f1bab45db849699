from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.schema import PresetConfig
from supervisor.gateway.ports import ModelCard
from supervisor.gateway.presets import apply_preset
from tests.fakes.gateway import model_entry, running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

CHAT = (Path(__file__).parents[2] / "data" / "gateway" / "chat.sse").read_bytes()
PRESET = PresetConfig(strip=("seed", "top_p"), default={"temperature": 0.7, "seed": 1}, set={"top_k": 3})
ENTRY = replace(model_entry(), presets={"nice-name": PRESET})


@pytest.mark.parametrize(
    ("names", "body", "expected"),
    [
        (("nice-name",), {"seed": 9, "top_p": 1, "top_k": 9}, {"temperature": 0.7, "seed": 1, "top_k": 3}),
        (("nice-name",), {"temperature": 0}, {"temperature": 0, "seed": 1, "top_k": 3}),
        (("nice-name:latest", "nice-name"), {}, {"temperature": 0.7, "seed": 1, "top_k": 3}),
        (("demo",), {"seed": 9}, {"seed": 9}),
    ],
)
def test_strip_then_default_then_set(names: tuple[str, ...], body: dict[str, Any], expected: dict[str, Any]) -> None:
    """What is taken out may get a default; what is set stands over all; other names have none of it."""
    apply_preset(ENTRY, names, body)
    assert body == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_every_api_goes_by_the_preset_of_the_name(path: str) -> None:
    """A request under the alias is changed, one under the model's own name is not."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        gateway.router.entry = ENTRY
        for name in ("nice-name", "demo"):
            body = {"model": name, "messages": [{"role": "user", "content": "x"}], "stream": False}
            async with gateway.client.post(path, json=body) as answer:
                assert answer.status == 200
        assert [heard.json.get("top_k") for heard in gateway.engine.heard] == [3, None]


async def test_an_unlisted_model_is_found_by_its_name_alone() -> None:
    """It stands in no list, and says all of itself to who names it."""
    async with running_gateway(PlayedEngine(stream(CHAT))) as gateway:
        gateway.cards.append(ModelCard("demo", 1, ("chat",), "ready", unlisted=True))
        async with gateway.client.get("/v1/models") as answer:
            assert (await answer.json())["data"] == []
        async with gateway.client.get("/api/tags") as answer:
            assert (await answer.json())["models"] == []
        async with gateway.client.get("/v1/models/demo") as answer:
            assert (await answer.json())["id"] == "demo"
