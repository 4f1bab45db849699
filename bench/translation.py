"""What another API costs above a plain chat: CPU of the translation, before the first byte and for each chunk.

In this process and without sockets: the same chunks of an engine go through the plain way and through each API's, in
turn. Before the first byte: the request is translated, encoded, and the first chunk with content becomes events. Each
chunk after it: one token of text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson

from bench.support.report import Progress, Table, options, run
from bench.support.stats import Samples
from supervisor.gateway.translate.anthropic_answer import MessageEvents
from supervisor.gateway.translate.anthropic_request import to_chat as chat_of_message
from supervisor.gateway.translate.ollama_answer import Lines, in_message
from supervisor.gateway.translate.ollama_request import chat_of_chat
from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.responses_answer import ResponseEvents
from supervisor.gateway.translate.responses_request import to_chat as chat_of_response
from supervisor.gateway.translate.tool_calls import CallWatch
from supervisor.gateway.translate.watched import Picker, Translation, Watched

_FIRST_TARGET = 1e-3
_CHUNK_TARGET = 20e-6
_CHUNKS = 200
_TURNS = 20  # messages of the conversation that is translated
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": _PARAMETERS}}
_Way = tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]], Callable[[PassThrough], Picker]]


def main() -> None:
    """The command."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="turns of each way (default 200, quick 10)")
    run("translation", parser, measure)


def measure(chosen: argparse.Namespace) -> Sequence[Table]:
    """The table."""
    rounds = chosen.rounds or (10 if chosen.quick else 200)
    ways = _ways()
    firsts = {name: Samples() for name in ways}
    chunks = {name: Samples() for name in ways}
    progress = Progress()
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for name, way in ways.items():
            first, rest = _once(way)
            firsts[name].add([first])
            chunks[name].add([rest])
    progress.done()
    plain = next(iter(ways))
    table = Table(
        "Added to a plain chat by the translation (median)",
        ("API", "first byte, ms", "added, ms", "each chunk, µs", "added, µs", "target"),
    )
    for name in ways:
        first, rest = firsts[name].median, chunks[name].median
        more, each = first - firsts[plain].median, rest - chunks[plain].median
        kept = more <= _FIRST_TARGET and each <= _CHUNK_TARGET
        cells = (f"{first * 1e3:.3f}", f"{more * 1e3:.3f}", f"{rest * 1e6:.1f}", f"{each * 1e6:.1f}")
        table.row(name, *cells, "" if name == plain else "met" if kept else "missed")
    table.notes.append(
        f"{rounds} rounds; {_TURNS} messages before, {_CHUNKS} chunks after; targets: 1 ms and 20 µs added."
    )
    return [table]


def _ways() -> dict[str, _Way]:
    said = [
        {"role": ("user", "assistant")[turn % 2], "content": "Some words of a talk. " * 20} for turn in range(_TURNS)
    ]
    body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 100}
    lines = partial(Lines, place=in_message, thinking=True, load_seconds=lambda: 0.0)
    response = partial(ResponseEvents, "resp_1", 0, {}, lambda _: {})
    return {
        "chat": ({**body, "messages": said}, dict, lambda passing: passing),
        "chat with tools": (
            {**body, "messages": said, "tools": [_TOOL]},
            dict,
            lambda passing: Watched(passing, CallWatch([_TOOL])),
        ),
        "Messages": (
            {**body, "messages": said},
            chat_of_message,
            lambda passing: Translation(passing, None, MessageEvents(thinking=True)),
        ),
        "Responses": (
            {**body, "input": said},
            chat_of_response,
            lambda passing: Translation(passing, None, response()),
        ),
        "Ollama": ({**body, "messages": said}, chat_of_chat, lambda passing: Translation(passing, None, lines())),
    }


def _once(way: _Way) -> tuple[float, float]:
    """CPU seconds before the first byte, and for each chunk after it."""
    body, translate, wrap = way
    frames = [_frame(f" word{number}") for number in range(_CHUNKS + 1)]
    begun = time.thread_time()
    orjson.dumps(translate(body))
    picker = wrap(PassThrough(lambda data: b'"prompt_progress":' in data, keep_progress=False, side_by_side=False))
    picker.pick(frames[:1])
    first = time.thread_time()
    for frame in frames[1:]:
        picker.pick([frame])
    return first - begun, (time.thread_time() - first) / _CHUNKS


def _frame(text: str) -> bytes:
    choice = {"finish_reason": None, "index": 0, "delta": {"content": text}}
    head = {"created": 1, "id": "chatcmpl-1", "model": "m", "object": "chat.completion.chunk"}
    return b"data: " + orjson.dumps({"choices": [choice], **head}) + b"\n\n"


if __name__ == "__main__":
    main()
