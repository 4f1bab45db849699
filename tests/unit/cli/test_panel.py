"""The panel: pure, tolerant of what isn't known, and its command works as it is."""

import contextlib
import io
import json
import shlex
from typing import Any

import pytest
from rich.console import Console

from supervisor.cli.demo import show_panel
from supervisor.cli.panel import curl_line, panel, panel_facts, plain_panel
from tests.unit.cli.command import Terminal

_STATUS: dict[str, Any] = {
    "address": "http://127.0.0.1:8080",
    "models": [
        {"id": "embedder", "serves": ["embeddings"]},
        {"id": "demo", "aliases": ["SmolLM2"], "serves": ["chat", "embeddings"]},
    ],
    "builds": [
        {"name": "vulkan", "engine": "llama.cpp", "version": "b10068", "health": "usable", "devices": ["Vulkan0"]},
        {"name": "cuda", "engine": "llama.cpp", "health": "suspect", "reason": "no driver", "devices": None},
    ],
    "threads": {"value": 2, "reason": "2 CPUs are online"},
}


def _drawn(status: dict[str, Any], width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(panel(status))
    return stream.getvalue()


def test_the_panel_says_what_there_is() -> None:
    """Address, models, builds, devices, threads and why; what is unusual about a build has its reason."""
    assert panel_facts(_STATUS) == [
        ("address", "http://127.0.0.1:8080"),
        ("models", "embedder: embeddings\ndemo (also SmolLM2): chat, embeddings"),
        ("builds", "vulkan (llama.cpp, b10068)\ncuda (llama.cpp): suspect, no driver"),
        ("devices", "Vulkan0"),
        ("threads", "2: 2 CPUs are online"),
        ("first", "the first request of a model starts its engine, and waits for it"),
    ]
    for _, value in panel_facts(_STATUS):
        assert value.split("\n")[0] in _drawn(_STATUS)
        assert value.split("\n")[0] in plain_panel(_STATUS)


def test_the_command_is_one_line_that_a_shell_reads_as_meant() -> None:
    """It asks the first model that chats, for few tokens, and survives the shell's quoting."""
    line = curl_line(_STATUS)
    assert line is not None
    command = shlex.split(line)
    assert command[:3] == ["curl", "-s", "http://127.0.0.1:8080/v1/chat/completions"]
    body = json.loads(command[-1])
    assert (body["model"], body["max_tokens"]) == ("demo", 32)
    assert body["messages"][0]["role"] == "user"


def test_the_command_is_one_unbroken_line_below_the_panel() -> None:
    """Regression guard: a line that rich wraps or frames is pasted as several."""
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal):
        show_panel(_STATUS)
    assert terminal.getvalue().split("\n")[-2] == curl_line(_STATUS)
    assert curl_line(_STATUS) in plain_panel(_STATUS).split("\n")


@pytest.mark.parametrize(
    ("address", "asked"),
    [("http://0.0.0.0:80", "http://127.0.0.1:80"), ("http://[::]:80", "http://[::1]:80"), ("http://[::1]:80",) * 2],
)
def test_an_address_that_means_everywhere_is_asked_here(address: str, asked: str) -> None:
    """0.0.0.0 is where one listens, not where one asks."""
    line = curl_line({**_STATUS, "address": address})
    assert line is not None
    assert f" {asked}/v1/" in f" {shlex.split(line)[2]} "


def test_what_is_not_known_is_called_unknown_and_what_is_missing_says_what_to_do() -> None:
    """An empty status gives a panel all the same, without a command that could not work."""
    facts = dict(panel_facts({}))
    assert facts["address"] == facts["threads"] == facts["devices"] == "unknown"
    assert "data_dir" in facts["models"]
    assert "PATH" in facts["builds"]
    assert curl_line({}) is None
    assert "curl" not in plain_panel({}) + _drawn({})


def test_builds_without_devices_mean_the_cpu() -> None:
    """Only a listing that could be read says that there is no device."""
    build = _STATUS["builds"][0]
    assert dict(panel_facts({"builds": [{**build, "devices": []}]}))["devices"].startswith("CPU only")
    assert dict(panel_facts({"builds": [{**build, "devices": None}]}))["devices"] == "unknown"
