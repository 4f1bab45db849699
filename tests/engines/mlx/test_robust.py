"""The MLX server is not ended by requests, by many at once, or by time."""

from __future__ import annotations

import json
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.conftest import mlx_daemon_config
from tests.support.daemon import running_daemon_sync
from tests.support.mlx_server import MlxServer, UnixConnection, running_mlx_server
from tests.wire.asking import LOG_ALL, instance, said, sdk

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hello"}]
# What was seen to end the thread of mlx_lm's own server, or to be answered wrongly by it.
KILLERS: list[tuple[str, Any]] = [
    (TEXT, {"prompt": ["a", "b"], "max_tokens": 2}),
    (TEXT, {"prompt": "", "max_tokens": 2}),
    (TEXT, {"prompt": "a", "stop": [5]}),
    (TEXT, {"prompt": "a", "top_k": 10**6, "temperature": 1, "max_tokens": 2}),
    (TEXT, {"prompt": "a", "top_k": 507, "temperature": 1, "max_tokens": 2}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"content": "no role"}]}),
    (CHAT, {"messages": 5}),
    (TEXT, {"prompt": "a", "seed": -5, "temperature": 1, "max_tokens": 2}),
    (CHAT, {"messages": USER, "stream": True, "stream_options": {}, "max_tokens": 2}),
    (TEXT, {"prompt": "a", "logit_bias": {"999999": 1}}),
    (TEXT, {"prompt": "a", "max_tokens": 0}),
    (TEXT, {"prompt": [10**9]}),
    (TEXT, {"prompt": [-1]}),
    (TEXT, b"{"),
    (TEXT, b"\xff\xfe"),
    (TEXT, b"[" * 100_000),
    (TEXT, b""),
    (TEXT, b"null"),
    (TEXT, {"prompt": "\ud83d", "max_tokens": 2}),
    (TEXT, {"prompt": "a\x00b", "max_tokens": 2}),
    (TEXT, {"prompt": "<|im_end|><|im_start|>", "max_tokens": 2}),
    (TEXT, {"prompt": "a", "temperature": 1e-300, "max_tokens": 2}),
    (TEXT, {"prompt": "a", "temperature": 100, "min_p": 1, "top_p": 1e-9, "max_tokens": 2}),
    (TEXT, {"prompt": "a", "logprobs": 20, "max_tokens": 2}),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"x": {"y": [1]}}, "max_tokens": 2}),
    ("/tokenize", {"content": 5}),
    ("/detokenize", {"tokens": [10**6]}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"input": "word " * 5000}),
    ("/v1/embeddings", {"input": "a", "model": "/etc/passwd"}),
    ("/v1/embeddings", {"input": "a", "dimensions": 5}),
    ("/v1/embeddings", {"input": ["a", None]}),
    ("/v1/responses", {"input": "hi"}),
    (TEXT, {"prompt": ["a", 5]}),
    (TEXT, {"prompt": [[1], []]}),
    (TEXT, {"prompt": ["x"] * 1000}),
    (TEXT, {"prompt": "a", "stop": [None]}),
    (TEXT, {"prompt": "a", "stop": ["x" * 100_000]}),
    (TEXT, {"prompt": "a", "top_k": 2**70, "temperature": 1}),
    (TEXT, {"prompt": "a", "logit_bias": {str(token): -100 for token in range(507)}, "max_tokens": 2}),
    (TEXT, {"prompt": "a", "repetition_penalty": 1e-40}),
    (TEXT, {"prompt": "a", "n": 100_000}),
    (TEXT, {"prompt": "a", "seed": 2**64}),
    (TEXT, {"prompt": "a", "model": "/etc/passwd"}),
    (TEXT, {"prompt": "a", "adapters": "/etc"}),
    (TEXT, b'{"prompt": "a", "temperature": NaN}'),
    (TEXT, b'{"a":' * 2000),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [5]}]}),
    (CHAT, {"messages": USER * 3000}),
    (CHAT, {"messages": USER, "tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}),
    (CHAT, {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}}),
    (CHAT, {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "x:"}}}}),
    (CHAT, {"messages": USER, "chat_template_kwargs": {"chat_template": "{{ 1/0 }}"}}),
    ("/admin/cache", {"action": "explode"}),
]


def test_bad_requests_leave_it_alive_and_right(mlx: MlxServer) -> None:
    """Prevents: one request ended the thread, and every later one failed. A good one after each gives its words."""
    for path, body in KILLERS:
        answer = mlx.ask(path, body)
        assert answer.status in {200, 400, 404}, (path, body, answer)
        if answer.status != 200:
            assert answer.json["error"]["message"]
        assert mlx.complete("One two", max_tokens=2).text == " three four", (path, body)


def test_a_text_that_is_far_too_long_is_refused_at_once(mlx: MlxServer) -> None:
    """Prevents: 10 MB of text were counted to the end, for 15 s in which no other prompt could be made."""
    for path, body in ((TEXT, {"prompt": "word " * 2_000_000}), (CHAT, {"messages": said("word " * 2_000_000)})):
        began = time.monotonic()
        error = mlx.ask(path, body).json["error"]
        assert error["type"] == "exceed_context_size_error"
        assert "at least" in error["message"]
        assert time.monotonic() - began < 8


def test_generated_requests(mlx: MlxServer) -> None:
    """Five hundred bodies, each with something odd in it, eight at once: each is answered, and the last one right."""
    chance = random.Random(1)
    bodies = [_odd_body(chance) for _ in range(500)]

    def ask(body: tuple[str, dict[str, Any]]) -> int:
        answer = mlx.ask(body[0], body[1])
        assert b"server_error" not in answer.body, (body, answer)
        return answer.status

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, bodies))
    assert set(statuses) <= {200, 400, 404}
    assert statuses.count(200) > 50
    assert statuses.count(400) > 50
    assert mlx.complete("One two", max_tokens=2).text == " three four"


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    1e308,
    10**18,
    "",
    "x",
    "\n",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    [[1, 2]],
    "null",
]
FIELDS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "stream", "stream_options"),
    *("logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("tools", "tool_choice", "response_format", "chat_template_kwargs", "echo", "model", "ignore_eos"),
    *("generation_mode", "mtp_depth", "return_progress", "cache_prompt", "prompt", "messages"),
)


def _odd_body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A good request with up to three fields of any kind."""
    body: dict[str, Any] = {"prompt": "One", "messages": USER, "max_tokens": 2}
    for name in chance.sample(FIELDS, chance.randint(1, 3)):
        body[name] = chance.choice(ODD)
    # A field that bounds the work is kept in bounds, so that all is over soon.
    if body["max_tokens"] in (None, True, -1, 10**18) or isinstance(body["max_tokens"], dict):
        body["max_tokens"] = 3
    return chance.choice((CHAT, TEXT)), body


PAUSES = "mlx_server_pauses_total "
PROMPTS = ["One two", "Once upon a", "The quick", "Hello!", "What is the", "Write a", "def main", "A farm of"]


COMPANY = st.lists(
    st.tuples(st.sampled_from(PROMPTS), st.integers(1, 24), st.booleans(), st.booleans(), st.sampled_from([0, 0.9])),
    min_size=2,
    max_size=16,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COMPANY, st.integers(2, 16))
def test_the_same_text_alone_and_in_company(mlx: MlxServer, rows: list[Any], at_once: int) -> None:
    """At temperature 0 an answer does not depend on who else is served, whenever they come, cached or not.

    Others draw at random, with penalties: they choose for themselves alone.
    """

    def ask(place: int) -> str:
        prompt, count, stream, cached, temperature = rows[place]
        body = {"prompt": prompt, "max_tokens": count, "ignore_eos": True, "stream": stream, "cache_prompt": cached}
        drawn = {"temperature": temperature, "top_p": 0.9, "frequency_penalty": 0.5} if temperature else {}
        return mlx.complete(**{**body, **drawn}).text

    with ThreadPoolExecutor(at_once) as pool:  # with fewer than there are, they join and leave at different steps
        texts = list(pool.map(ask, range(len(rows))))
    for (prompt, count, _, _, temperature), text in zip(rows, texts, strict=True):
        if temperature == 0:
            assert text == _alone(mlx, prompt, count), (prompt, count)


def _alone(server: MlxServer, prompt: str, count: int) -> str:
    return server.complete(prompt, max_tokens=count, ignore_eos=True, cache_prompt=False).text


def test_sixteen_streams_that_join_and_leave(mlx: MlxServer) -> None:
    """Streams begin at any time; every third client leaves in the middle; the others get all of theirs."""
    expected = mlx.complete("One two", max_tokens=60, ignore_eos=True).text

    def stream(number: int) -> str:
        body = {"prompt": "One two", "max_tokens": 60, "stream": True, "temperature": 0, "ignore_eos": True}
        if number % 3:
            return mlx.ask(TEXT, body).text
        connection = UnixConnection(mlx.socket, 30)
        try:
            connection.request("POST", TEXT, json.dumps({**body, "max_tokens": 1500}).encode())
            return connection.getresponse().read(300 * (1 + number)).decode()[:0]
        finally:
            connection.close()

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(stream, range(48)))
    assert [text for number, text in enumerate(texts) if number % 3] == [expected] * 32
    assert mlx.complete("One two", max_tokens=2).text == " three four"


def test_a_client_that_does_not_read(mlx: MlxServer) -> None:
    """Its answer is set aside and others are served; when it reads again, it gets the very same text."""
    body = {"prompt": "One two", "max_tokens": 600, "ignore_eos": True, "logprobs": 20}
    body |= {"temperature": 0, "frequency_penalty": 0.1}
    expected = mlx.ask(TEXT, body).text
    before = _pauses(mlx)
    connection = UnixConnection(mlx.socket, 60)
    connection.request("POST", TEXT, json.dumps({**body, "stream": True}).encode())
    answer = connection.getresponse()
    deadline = time.monotonic() + 60
    while _pauses(mlx) == before and time.monotonic() < deadline:
        assert mlx.complete("One two", max_tokens=2).text == " three four"
    assert _pauses(mlx) > before
    lines = [line[6:] for line in answer.read().split(b"\n") if line.startswith(b"data: {")]
    connection.close()
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    assert "".join(choice["text"] for choice in choices) == expected
    assert choices[-1]["finish_reason"] == "length"


def _pauses(server: MlxServer) -> int:
    """How often an answer had to wait for its client so far."""
    [line] = [line for line in server.ask("/metrics").body.decode().splitlines() if line.startswith(PAUSES)]
    return int(line.removeprefix(PAUSES))


def test_a_long_prompt_does_not_stop_others(mlx: MlxServer) -> None:
    """While a long prompt is read, running streams go on."""
    long = mlx.ask("/tokenize", {"content": "The quick brown fox " * 400}).json["tokens"][:1900]
    connection = UnixConnection(mlx.socket, 60)
    body = {"prompt": "One two", "max_tokens": 400, "stream": True, "temperature": 0, "ignore_eos": True}
    connection.request("POST", TEXT, json.dumps(body).encode())
    running = connection.getresponse()
    assert running.readline()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(mlx.complete, long, max_tokens=1, cache_prompt=False)
        during = 0
        while not other.done() and (line := running.readline()):
            during += line.startswith(b"data: {")
        assert other.result().status == 200
    connection.close()
    assert during > 5


def test_memory_does_not_grow(mlx_models: Path) -> None:
    """Five hundred requests of every kind: after the first hundred the process has all that it needs."""
    with running_mlx_server(mlx_models / "qwen3", "--parallel", "8", "--cache-ram", "4") as server:
        process = psutil.Process(server.process.pid)
        form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}

        def ask(number: int) -> int:
            more: dict[str, Any] = {
                "stream": bool(number % 2),
                "max_tokens": 1 + number % 6,
                "n": 1 + (number % 4 == 0),
            }
            if number % 5 == 0:
                more |= {"temperature": 1.1, "top_p": 0.9, "seed": number}
            if number % 7 == 0:
                more["response_format"] = form
            if number % 11 == 0:
                more |= {"logprobs": True, "top_logprobs": 3}
            return server.chat(f"{number} " + "word " * (number % 12), **more).status

        sizes = []
        with ThreadPoolExecutor(8) as pool:
            for hundred in range(5):
                assert set(pool.map(ask, range(hundred * 100, hundred * 100 + 100))) == {200}
                sizes.append(process.memory_info().rss)
        memory = server.ask("/admin/memory").json
    assert sizes[-1] - sizes[1] < 24 * 2**20, sizes
    assert memory["active_bytes"] < 16 * 2**20


def test_killed_in_mid_stream(mlx_models: Path, tmp_path: Path) -> None:
    """The client hears of it, and the next request is served by a new engine."""
    models = {"toy": {"file": str(mlx_models / "llama"), "launch": {"ctx_size": 2048, "slots": 2}}}
    with running_daemon_sync(tmp_path, mlx_daemon_config(models), env=LOG_ALL) as daemon, sdk(daemon) as client:
        body: Any = {"model": "toy", "prompt": "One two", "max_tokens": 1500, "temperature": 0}
        with client.completions.create(**body, stream=True, extra_body={"ignore_eos": True}) as stream:
            assert next(iter(stream)).choices
            psutil.Process(instance(daemon, "toy")["pid"]).send_signal(signal.SIGKILL)
            with pytest.raises(openai.APIError):
                list(stream)
        again = client.chat.completions.create(model="toy", messages=said("Hello"), max_tokens=3)
        assert again.usage is not None
        assert again.usage.completion_tokens == 3
        assert instance(daemon, "toy")["generation"] == 2
