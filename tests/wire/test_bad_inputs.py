"""Bad requests and bad files are answered clearly, and change nothing."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, EMBEDDINGS, LOG_ALL, TEXT, Answer, ask, chat_body, connect, said, status

MEBIBYTE = 2**20
BODY_LIMIT = 32 * MEBIBYTE


def with_image(url: str) -> dict[str, Any]:
    """A chat about the image at ``url``."""
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


# name: path, body, status, code, a part of the message
BAD: dict[str, tuple[str, Any, int, str, str]] = {
    "no JSON": (CHAT, b"{model: m}", 400, "invalid_json", "not valid JSON"),
    "half a JSON": (CHAT, b'{"model": "m", "messages": [', 400, "invalid_json", "not valid JSON"),
    "empty": (CHAT, b"", 400, "invalid_json", "not valid JSON"),
    "not UTF-8": (CHAT, b'{"model": "\xff"}', 400, "invalid_json", "not valid JSON"),
    "too deep": (CHAT, b"[" * 100_000, 400, "invalid_json", "not valid JSON"),
    "a list": (CHAT, [], 400, "invalid_request", "must be a JSON object, not a list"),
    "no model": (CHAT, {"messages": said("a")}, 400, "model_missing", "`model`"),
    "model is no text": (CHAT, {"model": 7, "messages": said("a")}, 400, "model_missing", "`model`"),
    "unknown model": (CHAT, chat_body("mm"), 404, "model_not_found", "Did you mean 'm'?"),
    "a path as model": (CHAT, chat_body("/etc/passwd"), 404, "model_not_found", "no model"),
    "a huge name": (CHAT, chat_body("m" * 100_000), 404, "model_not_found", "no model"),
    "no messages": (CHAT, {"model": "m"}, 400, "invalid_request", "`messages`"),
    "messages are a text": (CHAT, {"model": "m", "messages": "hi"}, 400, "invalid_request", "`messages`"),
    "a message is a text": (CHAT, {"model": "m", "messages": ["hi"]}, 400, "invalid_request", "`messages[0]`"),
    "a message without role": (
        CHAT,
        {"model": "m", "messages": [{"content": "hi"}]},
        400,
        "invalid_request",
        "`messages[0]",
    ),
    "tools are a text": (CHAT, chat_body("m", tools="weather"), 400, "invalid_request", "`tools`"),
    "stream is a text": (CHAT, chat_body("m", stream="yes"), 400, "invalid_request", "`stream`"),
    "no prompt": (TEXT, {"model": "m"}, 400, "invalid_request", "`prompt`"),
    "no input": (EMBEDDINGS, {"model": "m"}, 400, "invalid_request", "`input`"),
    "empty input": (EMBEDDINGS, {"model": "m", "input": []}, 400, "invalid_request", "`input`"),
    "image by http": (CHAT, with_image("http://127.0.0.1:1/a.png"), 400, "url_refused", "engines here fetch nothing"),
    "image by https": (CHAT, with_image("HTTPS://example.com/a.png"), 400, "url_refused", "engines here fetch nothing"),
    "image by file": (CHAT, with_image("file:///etc/passwd"), 400, "url_refused", "engines here fetch nothing"),
    "image by path": (CHAT, with_image("/etc/passwd"), 400, "url_refused", "engines here fetch nothing"),
    "image after blanks": (
        CHAT,
        with_image(" \n file:///etc/passwd"),
        400,
        "url_refused",
        "engines here fetch nothing",
    ),
    "nested too deeply": (
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":' + b"[" * 300 + b"]" * 300 + b"}",
        400,
        "invalid_request",
        "nested too deeply",
    ),
    "no such path": ("/v1/nothing", {"model": "m"}, 404, "not_found", "/v1/nothing"),
    "unload of an unknown model": ("/admin/v1/models/mm/unload", b"", 404, "model_not_found", "Did you mean 'm'?"),
}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that never starts an engine: whatever did would be seen."""
    folder = tmp_path_factory.mktemp("untouched")
    models = {"m": {"file": str(tiny_model(folder)), "serves": ["chat", "embeddings"]}}
    with running_daemon_sync(folder, daemon_config(fake_build(folder), models=models), env=LOG_ALL) as daemon:
        daemon.wait_for_event("build_found")
        daemon.wait_for_event("model_found")
        yield daemon


@contextmanager
def nothing_changes(daemon: Daemon) -> Iterator[None]:
    """No instance, no ticket and no process more than before the block, no bug in the log, and it still answers."""
    before, logged = _state_of(daemon), len(daemon.records)
    yield
    assert _state_of(daemon) == before
    assert not [row for row in daemon.records[logged:] if row.get("event") == "internal_error"]
    assert ask(daemon, "/healthz").status == 200


def _state_of(daemon: Daemon) -> dict[str, Any]:
    document = status(daemon)
    instances = [(row["id"], row["state"], row["generation"], row["leases"]) for row in document["instances"]]
    return {"instances": instances, "queue": document["queue"], "engines": {engine.pid for engine in daemon.engines()}}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(untouched: Daemon, name: str) -> None:
    """Each is refused with the status, the code and the words that say what to do; no engine is started for it."""
    with nothing_changes(untouched):
        path, body, expected, code, words = BAD[name]
        answer = ask(untouched, path, body)
    assert (answer.status, answer.error["code"]) == (expected, code)
    assert words in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"
    assert len(answer.error["message"]) < 1000 or name == "a huge name"
    assert answer.headers["x-request-id"].startswith("req-")


def test_a_refusal_does_not_repeat_a_huge_name(untouched: Daemon) -> None:
    """A name of 100,000 letters is not echoed whole into the answer."""
    answer = ask(untouched, CHAT, chat_body("m" * 100_000))
    assert answer.status == 404
    assert len(answer.body) < 2000


def test_wrong_method(untouched: Daemon) -> None:
    """A GET of a path that takes POST is a 405 that says which methods there are."""
    with nothing_changes(untouched):
        answer = ask(untouched, CHAT)
    assert (answer.status, answer.error["code"], answer.headers["Allow"]) == (405, "method_not_allowed", "POST")


def test_body_over_the_limit(untouched: Daemon) -> None:
    """A body that says it is too long is refused before it is read, in words that name the limit."""
    with nothing_changes(untouched):
        connection = connect(untouched)
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(BODY_LIMIT + 1))
        connection.endheaders()
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.headers.items()), response.read())
        connection.close()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert "32.0 MiB" in answer.error["message"]


def test_body_that_grows_over_the_limit(untouched: Daemon) -> None:
    """A body sent in chunks, without its length, is refused when it passes the limit, and is not kept reading."""
    with nothing_changes(untouched):
        connection = connect(untouched)
        chunks = (b" " * MEBIBYTE for _ in range(BODY_LIMIT // MEBIBYTE + 1))
        connection.request("POST", CHAT, chunks, {"Content-Type": "application/json"}, encode_chunked=True)
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.headers.items()), response.read())
        connection.close()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_compressed_body_over_the_limit(untouched: Daemon) -> None:
    """The limit counts the bytes that come out of a compressed body: a small bomb is a 413."""
    with nothing_changes(untouched):
        bomb = gzip.compress(b" " * (BODY_LIMIT + MEBIBYTE), compresslevel=1)
        answer = ask(untouched, CHAT, bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_a_body_that_is_not_what_it_says(untouched: Daemon) -> None:
    """A body that is said to be compressed and isn't is a 400, not a failure of the daemon."""
    with nothing_changes(untouched):
        answer = ask(untouched, CHAT, b"{}", headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_large_body_is_served(shared: Daemon) -> None:
    """Below the limit size is no fault: a body of some megabytes gets an answer."""
    body = chat_body("quick", "hello", padding="x" * (4 * MEBIBYTE))
    assert ask(shared, CHAT, body).json["choices"][0]["message"]["content"] == "You said: hello"


def test_broken_model_file(tmp_path: Path) -> None:
    """A GGUF cut in half is logged with the reason and not listed; asked for it says why; the others are served."""
    folder = tmp_path / "models"
    tiny_model(folder, "good.gguf")
    data = tiny_model(folder, "cut.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "none.gguf").write_bytes(b"")
    config = daemon_config(fake_build(tmp_path), models={}, model_dirs=[str(folder)])
    with running_daemon_sync(tmp_path, config) as daemon:
        logged = daemon.wait_for_event("model_broken", model="cut")
        assert logged["path"] == str(folder / "cut.gguf")
        assert [row["id"] for row in ask(daemon, "/v1/models").json["data"]] == ["good"]
        for model in ("cut", "none"):
            asked = ask(daemon, CHAT, chat_body(model))
            retrieved = ask(daemon, f"/v1/models/{model}")
            for answer in (asked, retrieved):
                assert (answer.status, answer.error["code"]) == (503, "model_broken")
                assert answer.headers["x-should-retry"] == "false"
        assert logged["reason"] in ask(daemon, CHAT, chat_body("cut")).error["message"]
        assert status(daemon)["instances"] == []
        assert ask(daemon, CHAT, chat_body("good")).status == 200


def test_missing_model_file(tmp_path: Path) -> None:
    """A configured model whose file is not there stops nothing, and says where it was looked for."""
    models = {"gone": {"file": str(tmp_path / "gone.gguf")}, "good": {"file": str(tiny_model(tmp_path))}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models)) as daemon:
        answer = ask(daemon, CHAT, chat_body("gone"))
        assert (answer.status, answer.error["code"]) == (503, "model_broken")
        assert str(tmp_path / "gone.gguf") in answer.error["message"]
        assert ask(daemon, CHAT, chat_body("good")).status == 200


def test_no_build(tmp_path: Path) -> None:
    """Without any executable the daemon runs and lists models; asked for one it says how to get a build."""
    models = {"m": {"file": str(tiny_model(tmp_path))}}
    with running_daemon_sync(tmp_path, daemon_config(models=models)) as daemon:
        answer = ask(daemon, CHAT, chat_body("m"), timeout=5)
        assert (answer.status, answer.error["code"]) == (503, "no_build")
        assert "engines.llama.cpp.builds" in answer.error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert [row["id"] for row in ask(daemon, "/v1/models").json["data"]] == ["m"]
