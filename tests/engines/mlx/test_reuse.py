"""What was computed is used again: in memory, after a restart, and never wrongly."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.support.mlx_server import MlxServer, running_mlx_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

LONG = "The quick brown fox jumps over the lazy dog. " * 20


def cached(server: MlxServer, prompt: str, **more: object) -> tuple[int, str]:
    """Tokens that did not have to be computed, and the text."""
    answer = server.complete(prompt, **more)
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"], answer.text


def test_longest_beginning_in_memory(mlx: MlxServer) -> None:
    """The next turn computes what is new; the text is that of a computation from the start."""
    mlx.ask("/admin/cache", {"action": "clear"})
    first, said = cached(mlx, LONG)
    again, same = cached(mlx, LONG)
    turn, more = cached(mlx, LONG + said + " And then")
    other, fresh = cached(mlx, LONG + said + " And then", cache_prompt=False)
    assert first == other == 0
    assert again > 150
    assert turn >= again
    assert same == said
    assert more == fresh
    # A prompt that parts from it in the middle uses what is the same.
    parted, _ = cached(mlx, LONG[: len(LONG) // 2] + "Once upon a time")
    assert 0 < parted < again
    document = mlx.ask("/admin/cache").json
    assert document["hits"] >= 3
    assert 0 < document["bytes"] <= document["budget_bytes"]


def test_budget_is_kept(mlx_models: Path, tmp_path: Path) -> None:
    """More conversations than fit: the oldest go. After a restart those on disk are there, and fit the model alone."""
    model = tmp_path / "model"
    shutil.copytree(mlx_models / "llama", model)
    where = ("--cache-dir", str(tmp_path / "cache"), "--alias", "toy")
    with running_mlx_server(model, *where, "--cache-ram", "1") as server:
        for number in range(12):
            server.complete(f"{number} {LONG}", max_tokens=2)
        document = server.ask("/admin/cache").json
        assert document["bytes"] <= document["budget_bytes"] == 2**20
        assert document["evicted"] > 0
        flushed = server.ask("/admin/cache", {"action": "flush"}).json
        assert flushed["saved"] == document["entries"]
        prompt = f"11 {LONG}"
        fresh = server.complete(prompt, cache_prompt=False).text
        assert server.stop(signal.SIGTERM) == 0
    files = sorted((tmp_path / "cache").rglob("*.safetensors"))
    assert len(files) >= document["entries"] - 1
    damaged = files[0]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with running_mlx_server(model, *where) as server:
        assert "of an earlier life" in "\n".join(server.lines)
        hits = [cached(server, f"{number} {LONG}")[0] for number in range(12)]
        again, text = cached(server, prompt)
        assert (text, again > 100 or hits[11] < 100) == (fresh, True)
        assert sum(1 for hit in hits if hit > 100) >= document["entries"] - 2
        assert server.ask("/admin/cache").json["restored"] > 0
        server.stop(signal.SIGKILL)
    (model / "config.json").touch()
    with running_mlx_server(model, *where) as server:
        assert cached(server, prompt)[0] == 0, "another model must not be given these"


@pytest.mark.parametrize("args", [("--kv-bits", "8"), ("--max-kv-size", "64")])
def test_quantised_and_rotating_caches(args: tuple[str, ...], mlx_models: Path) -> None:
    """Answers are words, several at once are served, and what is reused gives the same text."""
    with running_mlx_server(mlx_models / "llama", *args, "--parallel", "2") as server:
        assert server.complete("One two", max_tokens=3).text == " three four five"
        first, said = cached(server, LONG[:100])
        again, same = cached(server, LONG[:100])
        assert (first, same) == (0, said)
        assert again > 0 or args[0] == "--max-kv-size"
        both = server.complete(["One two", "One two"], max_tokens=3).json["choices"]
        assert {choice["text"] for choice in both} == {" three four five"}
        assert server.complete(LONG[:300], max_tokens=12).status == 200


def test_speculation_changes_no_text(mlx_models: Path) -> None:
    """At temperature 0 the draft model changes how fast, not what; a request can say for itself."""
    draft = ("--draft-model", str(mlx_models / "draft"))
    with running_mlx_server(mlx_models / "llama", *draft) as server:
        assert any("[spec] on" in line for line in server.lines)
        for prompt in ("One two", "Once upon", LONG):
            guessed = server.complete(prompt, max_tokens=40, cache_prompt=False)
            plain = server.complete(prompt, max_tokens=40, cache_prompt=False, generation_mode="ar")
            assert guessed.text == plain.text
            assert guessed.json["timings"].get("draft_n_accepted", 0) > 0
            assert "draft_n_accepted" not in plain.json["timings"]
            stopped = server.complete(prompt, max_tokens=40, stop=[" five", "."], mtp_depth=7)
            assert guessed.text.startswith(stopped.text)
        reused = cached(server, LONG + "One two", max_tokens=20)
        assert reused[0] > 100
        assert reused[1] == cached(server, LONG + "One two", max_tokens=20, cache_prompt=False)[1]
        assert server.complete("One", temperature=1, generation_mode="mtp").status == 200
        assert any("[spec] off for a request" in line for line in server.lines)


def test_a_bad_draft_model_is_no_hindrance(mlx_models: Path, tmp_path: Path) -> None:
    """Prevents: what was to make it faster kept it from starting. The reason is in the log, once."""
    with running_mlx_server(mlx_models / "llama", "--draft-model", str(tmp_path)) as server:
        assert server.complete("One two", max_tokens=2).text == " three four"
        assert sum("[spec] off" in line for line in server.lines) == 1
