"""The ollama client against the real engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import ollama
import pytest

from tests.engines.conftest import Served
from tests.wire.asking import said

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


@pytest.fixture
def client(served: Served) -> Iterator[ollama.Client]:
    """The client as an application would make it."""
    with closing(ollama.Client(host=served.daemon.base_url)) as client:
        yield client


def test_words_and_vectors(client: ollama.Client, served: Served) -> None:
    """The streamed words are the whole ones, with the engine's counts and times; vectors have the model's length."""
    question: Any = {"model": "smol", "messages": said("Name three colours.")}
    options = {"temperature": 0, "num_predict": 16}
    whole = client.chat(**question, options=options)
    parts = list(client.chat(**question, options=options, stream=True))
    assert len((whole.message.content or "").split()) > 3
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    for last in (whole, parts[-1]):
        assert (last.done_reason, last.eval_count) == ("length", 16)
        assert (last.eval_duration or 0) > 0
    raw = client.generate(model="smol", prompt=served.counting, raw=True, options={**options, "num_predict": 4})
    assert (raw.response or "").startswith(" four")
    assert [len(vector) for vector in client.embed(model="smol", input=["a cat", "a dog"]).embeddings] == [
        served.width
    ] * 2
