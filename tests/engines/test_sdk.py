"""The openai SDK against the real engines: real words, real vectors."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.engines.conftest import Served
from tests.wire.asking import async_sdk, said, sdk

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]

QUESTION: Any = {"model": "smol", "messages": said("Name three colours."), "temperature": 0, "max_tokens": 16}

TEXTS = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Quarterly tax returns are due in April."]


def test_chat_whole_and_streamed(served: Served) -> None:
    """The streamed pieces add up to the whole answer, which is words; usage is the same in both."""
    with sdk(served.daemon) as client:
        whole = client.chat.completions.create(**QUESTION)
        with client.chat.completions.create(**QUESTION, stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
    text = whole.choices[0].message.content
    assert text
    assert len(text.split()) > 3
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == text
    assert len(chunks) > 10
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.model == "smol"


async def test_chat_async(served: Served) -> None:
    """The async client gets the same words, whole and streamed."""
    async with async_sdk(served.daemon) as client:
        whole = await client.chat.completions.create(**QUESTION)
        stream = await client.chat.completions.create(**QUESTION, stream=True)
        async with stream:
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content


def test_completions(served: Served) -> None:
    """A text goes on where the prompt ends."""
    with sdk(served.daemon) as client:
        answer = client.completions.create(model="smol", prompt=served.counting, max_tokens=4, temperature=0)
    assert answer.choices[0].text.startswith(" four")


def test_embeddings(served: Served) -> None:
    """Vectors have the model's length and the length 1, the same in base64 and as floats."""
    with sdk(served.daemon) as client:
        [row] = client.embeddings.create(model="smol", input=TEXTS[0]).data
        [floats] = client.embeddings.create(model="smol", input=TEXTS[0], encoding_format="float").data
    assert len(row.embedding) == served.width
    assert row.embedding == pytest.approx(floats.embedding, abs=1e-5)
    assert math.hypot(*row.embedding) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("together", ["in one request", "at the same time"])
def test_embeddings_of_texts_together(served: Served, together: str) -> None:
    """A text's vector does not depend on the texts beside it, whoever sent them; like means near.

    Prevents: with a KV cache for each slot, the engine computes texts of unlike lengths in several steps when they
    come together, and pools only the last step of the longer one.
    """
    with sdk(served.daemon) as client:

        def embed(texts: list[str]) -> list[list[float]]:
            return [row.embedding for row in client.embeddings.create(model="smol", input=texts).data]

        def embed_at_once(texts: list[str]) -> list[list[float]]:
            with ThreadPoolExecutor(len(texts)) as pool:
                return [vector for [vector] in pool.map(lambda text: embed([text]), texts)]

        alone = [embed([text])[0] for text in TEXTS]
        # Whether requests meet in the engine is a matter of luck, so they get several chances.
        rounds = [(embed if together == "in one request" else embed_at_once)(TEXTS) for _ in range(5)]
    for vectors in rounds:
        assert [round(math.dist(one, other), 2) for one, other in zip(vectors, alone, strict=True)] == [0, 0, 0]
    assert math.dist(alone[0], alone[1]) < math.dist(alone[0], alone[2])


def test_models(served: Served) -> None:
    """The list says what a request may use of the context."""
    with sdk(served.daemon) as client:
        listed = {model.id: model.to_dict() for model in client.models.list()}
    assert listed["smol"]["context_length"] == 2048
    assert listed["smol"]["capabilities"] == ["chat", "embeddings"]


def test_prompt_that_is_too_long(served: Served) -> None:
    """Beyond its context the engine refuses, and the SDK raises BadRequestError under OpenAI's code."""
    with sdk(served.daemon) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smol", messages=said("word " * 5000))
    assert caught.value.code == "context_length_exceeded"
    assert served.context in caught.value.message


def test_body_that_the_engine_cannot_read(served: Served) -> None:
    """A message without a role is the client's fault, whatever status the engine gives it."""
    messages: Any = [{"content": "hello"}]
    with sdk(served.daemon) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="smol", messages=messages)


def test_headers(served: Served) -> None:
    """A raw response says which instance answered, and that nothing had to be loaded."""
    with sdk(served.daemon) as client:
        raw = client.chat.completions.with_raw_response.create(**{**QUESTION, "max_tokens": 1})
    assert raw.headers["x-enginehouse-instance"] == "smol-1"
    assert raw.headers["x-enginehouse-load-ms"] == "0"
    assert raw.headers["x-request-id"]
