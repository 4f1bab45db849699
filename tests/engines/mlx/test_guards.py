"""A fault in one request's own rules, text or scores ends that request, and no other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.mlx_server import RUN, MlxServer, UnixConnection, running_mlx_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

# The server with parts that fail for requests that ask for it.
FAULTY = """
import sys
sys.path.insert(0, {root!r})
from engines.mlx.server import engine, single
from engines.mlx.server.sampling import Chooser, Penalties
from engines.mlx.server.scoring import Scoring
from engines.mlx.server.sequence import Sequence

def breaks(owner, name, when):
    whole = getattr(owner, name)
    def part(*args, **named):
        if when(*args, **named):
            raise RuntimeError("unlucky")
        return whole(*args, **named)
    setattr(owner, name, part)

def stops(sequence):
    return sequence.work.wishes.stop

{faults}
from engines.mlx.server.main import main
sys.exit(main(sys.argv[1:]))
"""
# Where it fails, and what a request asks for that fails there; some only after a few tokens.
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("Chooser, '__call__', lambda self, _: self._seed == 13 and self.place >= 3", {"temperature": 1, "seed": 13}),
    ("Penalties, '__call__', lambda self, *_: self._rules.presence_penalty == 1.3", {"presence_penalty": 1.3}),
    ("Scoring, 'of', lambda *args: args[-1] == 13", {"logprobs": 13}),
    ("Sequence, 'add', lambda self, *_: stops(self) == ('text',) and self.said >= 3", {"stop": ["text"]}),
    ("Sequence, 'end', lambda self, _: stops(self) == ('end',)", {"stop": ["end"]}),
    ("engine, 'rules_of', lambda sequence, *_: stops(sequence) == ('begin',)", {"stop": ["begin"]}),
]


def _program(folder: Path, *faults: str) -> Path:
    path = folder / "faulty.py"
    path.write_text(FAULTY.format(root=str(RUN.parents[3]), faults="\n".join(f"breaks({one})" for one in faults)))
    return path


@pytest.mark.parametrize("args", [("--parallel", "16"), pytest.param(("--kv-bits", "8"), marks=pytest.mark.slow)])
def test_a_fault_ends_its_request_alone(args: tuple[str, ...], mlx_models: Path, tmp_path: Path) -> None:
    """Prevents: one request's exception ended the thread, and with it every other answer.

    Good and faulty ones run together, or take turns, streamed and whole: these get an error, those their text.
    """
    program = _program(tmp_path, *(fault for fault, _ in FAULTS))
    with running_mlx_server(mlx_models / "llama", *args, program=program) as server:
        expected = _ask(server, {}).text

        def ask(number: int) -> Any:
            unlucky = FAULTS[number // 2][1] if number % 2 else {}
            return _ask(server, {**unlucky, "stream": number % 3 == 0})

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(12)))
        for number, answer in enumerate(answers):
            if number % 2:
                assert b"unlucky" in answer.body, FAULTS[number // 2]
                assert b"server_error" in answer.body
            else:
                assert (answer.status, answer.text) == (200, expected)
        assert server.ask("/health").status == 200
        assert _ask(server, {}).text == expected
        assert not any("died" in line for line in server.lines)


def _ask(server: MlxServer, more: dict[str, Any]) -> Any:
    return server.complete("One two", max_tokens=40, ignore_eos=True, cache_prompt=False, **more)


WEAK = """
from engines.mlx.server import grammar
whole = grammar.calls_grammar
def weak(family, tools, *rest, **named):
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    return whole(family, [{**tool, "parameters": none} for tool in tools], *rest, **named)
grammar.calls_grammar = weak
"""


@pytest.mark.slow
def test_a_session_whose_grammar_did_not_hold_goes_on_sequentially(mlx_models: Path, tmp_path: Path) -> None:
    """A call without what its grammar was to require: from then on its session is computed alone, others are not."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body = {"messages": [{"role": "user", "content": "Hello"}], "tools": [tool], "tool_choice": "required"}
    body |= {
        "temperature": 0,
        "max_tokens": 120,
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    program = _program(tmp_path, "single.SingleLane, 'start', lambda *_, **__: print('[alone]', file=sys.stderr)")
    text = program.read_text().replace("from engines.mlx.server.main", WEAK + "from engines.mlx.server.main")
    program.write_text(text)
    with running_mlx_server(mlx_models / "qwen3", program=program) as server:
        for session in ("a", "a", "b", "a"):
            call = _session(server, session, body)["choices"][0]["message"]["tool_calls"][0]["function"]
            assert (call["name"], call["arguments"]) == ("weather", "{}")
    marks = ("a call lacks city", "[alone]")
    told = [mark for line in server.lines for mark in marks if mark in line]
    assert told == ["a call lacks city", "[alone]", "a call lacks city", "[alone]"], "of a, a again, b, and a again"


def _session(server: MlxServer, session: str, body: Any) -> Any:
    """A chat of a session."""
    connection = UnixConnection(server.socket, 60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), {"x-session-id": session})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.mark.slow
def test_a_draft_model_that_fails_is_not_used_any_more(mlx_models: Path, tmp_path: Path) -> None:
    """One answer ends with the reason; from then on nothing is guessed, and the log says why, once."""
    program = _program(tmp_path, "single, 'speculative_generate_step', lambda *_, **__: True")
    draft = ("--draft-model", str(mlx_models / "draft"))
    with running_mlx_server(mlx_models / "llama", *draft, program=program) as server:
        assert b"unlucky" in _ask(server, {}).body
        again = _ask(server, {})
        assert again.status == 200
        assert again.text.startswith(" three four five")
        assert sum("[spec] off (RuntimeError: unlucky)" in line for line in server.lines) == 1
