"""The MLX server as its clients meet it."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path

import pytest

from tests.support.mlx_server import MlxServer, UnixConnection, running_mlx_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

WORDS = " three four five six seven eight nine ten."


def test_whole_and_streamed_completion(mlx: MlxServer) -> None:
    """The pieces add up to the whole, and usage is the same in both."""
    whole = mlx.complete("One two", stop=["\n"])
    streamed = mlx.complete("One two", stop=["\n"], stream=True)
    assert whole.json["choices"][0]["text"] == WORDS
    assert streamed.text == WORDS
    assert len(streamed.chunks) > 5
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == whole.json["usage"]["completion_tokens"]
    assert whole.json["choices"][0]["finish_reason"] == "stop"
    assert whole.json["model"] == "toy"


def test_whole_and_streamed_chat(mlx: MlxServer) -> None:
    """The same for a chat, whose usage comes in a chunk of its own when it is asked for."""
    whole = mlx.chat("Hello", max_tokens=6)
    streamed = mlx.chat("Hello", max_tokens=6, stream=True, stream_options={"include_usage": True})
    assert whole.text == streamed.text != ""
    assert streamed.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert streamed.chunks[-1]["usage"]["total_tokens"] == whole.json["usage"]["total_tokens"]
    assert whole.json["choices"][0]["finish_reason"] == "length"
    assert not any("prompt_progress" in chunk for chunk in streamed.chunks)


def test_progress_comes_before_content(mlx: MlxServer) -> None:
    """A long prompt is read in pieces, and each is reported to who asked for it."""
    answer = mlx.complete("word " * 700, max_tokens=2, stream=True, return_progress=True, cache_prompt=False)
    reports = [chunk["prompt_progress"] for chunk in answer.chunks if "prompt_progress" in chunk]
    assert len(reports) > 2
    assert [report["processed"] for report in reports] == sorted(report["processed"] for report in reports)
    assert reports[-1]["processed"] == reports[-1]["total"]
    assert "prompt_progress" in answer.chunks[0]


@pytest.mark.parametrize(
    ("stop", "text"), [("four", " three "), (["x", " five s"], " three four"), ([" three"], ""), ("ne t", None)]
)
def test_stop_strings(mlx: MlxServer, stop: object, text: str | None) -> None:
    """Prevents: stop strings off the borders of tokens were cut out of the text and did not stop."""
    answer = mlx.complete("One two", stop=stop)
    expected = " three four five six seven eight ni" if text is None else text
    assert answer.text == expected
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert mlx.complete("One two", stop=stop, stream=True).text == expected


def test_choices_and_prompts(mlx: MlxServer) -> None:
    """Two prompts with two answers each give four choices, in order."""
    answer = mlx.complete(["One two", "Hello"], n=2, max_tokens=3).json
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[1] == " three four five"
    assert texts[2] == texts[3] != texts[0]
    assert answer["usage"]["completion_tokens"] == 12


def test_tokens_as_prompt(mlx: MlxServer) -> None:
    """A prompt may be tokens, which /tokenize gives and /detokenize takes back."""
    tokens = mlx.ask("/tokenize", {"content": "One two"}).json["tokens"]
    assert mlx.ask("/detokenize", {"tokens": tokens}).json["content"] == "One two"
    assert mlx.complete(tokens, max_tokens=2).text == " three four"


def test_sampling_with_a_seed(mlx: MlxServer) -> None:
    """The same seed gives the same answer, another one another; greedy needs none."""

    def said(seed: int) -> str:
        return mlx.complete("The", temperature=1.2, top_p=0.95, min_p=0.01, seed=seed, max_tokens=30).text

    assert said(1) == said(1)
    assert len({said(seed) for seed in range(5)}) > 1
    assert mlx.complete("The", top_k=10**6, temperature=1.0).status == 200


def test_penalties_and_bias(mlx: MlxServer) -> None:
    """A bias forces and forbids tokens; penalties keep from saying the same again."""
    (three,) = mlx.ask("/tokenize", {"content": " three"}).json["tokens"]
    (cat,) = mlx.ask("/tokenize", {"content": " cat"}).json["tokens"]
    assert " three" not in mlx.complete("One two", logit_bias={three: -100}, max_tokens=2).text
    assert mlx.complete("One two", logit_bias={cat: 100}, max_tokens=3).text == " cat cat cat"
    free = mlx.complete("One two", max_tokens=24).text
    assert free.count(" three") == 2
    for rule in ({"frequency_penalty": 2, "presence_penalty": 2}, {"repetition_penalty": 10}):
        assert mlx.complete("One two", max_tokens=24, **rule).text != free


def test_logprobs(mlx: MlxServer) -> None:
    """Greedy tokens are the likeliest ones; scores of tokens that a stop took back are not given."""
    chat = mlx.chat("Hello", max_tokens=4, logprobs=True, top_logprobs=3).json["choices"][0]["logprobs"]["content"]
    assert len(chat) == 4
    for entry in chat:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == pytest.approx(entry["top_logprobs"][0]["logprob"], abs=1e-3)
        assert bytes(entry["bytes"]).decode() == entry["token"]
    cut = mlx.complete("One two", logprobs=1, stop=[" five"]).json["choices"][0]
    assert cut["logprobs"]["tokens"] == [" three", " four"]
    assert cut["logprobs"]["text_offset"] == [0, 6]


def test_context_is_checked_before_prefill(mlx: MlxServer) -> None:
    """Prevents: a prompt longer than the context was computed for minutes, and answered."""
    answer = mlx.complete("word " * 5000)
    assert answer.status == 400
    assert answer.json["error"]["type"] == "exceed_context_size_error"
    assert answer.json["error"]["n_ctx"] == 2048
    tokens = mlx.ask("/tokenize", {"content": " two" * 2040}).json["tokens"]
    full = mlx.complete(tokens, max_tokens=500, ignore_eos=True).json
    assert full["usage"]["total_tokens"] == 2048
    assert full["choices"][0]["finish_reason"] == "length"


def test_other_models_are_refused(mlx: MlxServer) -> None:
    """Prevents: any name was loaded from the disk or looked for at a hub."""
    for name in ("/etc", "mlx-community/Qwen3-4B-4bit", "TOY"):
        answer = mlx.complete("One", model=name)
        assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")
    assert mlx.complete("One", model="default_model").status == 200


def test_continued_message(mlx: MlxServer) -> None:
    """A last message of the assistant's is gone on with."""
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "One two"}]
    answer = mlx.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 3})
    assert answer.text == " three four five"


def test_template_and_models(mlx: MlxServer) -> None:
    """A chat's prompt can be looked at, and the model says what it can."""
    prompt = mlx.ask("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}).json["prompt"]
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    (model,) = mlx.ask("/v1/models").json["data"]
    assert (model["id"], model["meta"]["n_ctx"]) == ("toy", 2048)


def test_embeddings(mlx: MlxServer) -> None:
    """Vectors of length 1, the same alone and together."""
    both = mlx.ask("/v1/embeddings", {"input": ["a cat", "a river"]}).json["data"]
    alone = mlx.ask("/v1/embeddings", {"input": "a cat"}).json["data"][0]["embedding"]
    assert len(alone) == 256
    assert math.hypot(*alone) == pytest.approx(1, abs=1e-3)
    assert both[0]["embedding"] == pytest.approx(alone, abs=1e-5)
    assert both[1]["embedding"] != pytest.approx(alone, abs=1e-2)


def test_metrics_and_memory(mlx: MlxServer) -> None:
    """Sums go up, and MLX says what it holds."""
    mlx.complete("One two")
    metrics = dict(
        line.rsplit(" ", 1) for line in mlx.ask("/metrics").body.decode().splitlines() if not line.startswith("#")
    )
    assert int(metrics["mlx_server_answer_tokens_total"]) > 0
    memory = mlx.ask("/admin/memory").json
    assert 2_000_000 < memory["weights_bytes"] < memory["active_bytes"] <= memory["peak_bytes"]


def test_a_client_that_leaves_frees_the_engine(mlx: MlxServer) -> None:
    """Streamed or not, an answer that nobody reads is removed at the next step."""
    for stream in (True, False):
        connection = UnixConnection(mlx.socket, 30)
        body = b'{"prompt": "One two", "max_tokens": 1900, "ignore_eos": true, "stream": %s}'
        connection.request("POST", "/v1/completions", body % (b"true" if stream else b"false"))
        _until_busy(mlx, 1)
        connection.close()
        began = time.monotonic()
        _until_busy(mlx, 0)
        assert time.monotonic() - began < 5


def test_draining(mlx_models: Path) -> None:
    """After SIGTERM what runs is finished, nothing new is taken, and the end is a clean one."""
    with running_mlx_server(mlx_models / "llama", "--drain-ms", "20000") as server:
        connection = UnixConnection(server.socket, 60)
        body = b'{"prompt": "One two", "max_tokens": 200, "ignore_eos": true, "temperature": 0}'
        connection.request("POST", "/v1/completions", body)
        _until_busy(server, 1)
        server.process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert answer.status == 200
        assert b'"completion_tokens":200' in answer.read()
        connection.close()
        assert server.process.wait(20) == 0


def _until_busy(server: MlxServer, count: int) -> None:
    """Until so many answers are computed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if sum(row["is_processing"] for row in server.ask("/slots").json) == count:
            return
    raise AssertionError(f"never {count} at work")
