"""The MLX server against ``mlx_lm.server``: the same models, the same requests, in turn, each in a process of its own.

Models are written on the spot: a tiny one, and a larger one with random weights. `total` is tokens of all streams a
second, first token and gaps are medians. A follow-up is a turn whose beginning was computed before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.errors import BenchError
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.stats import show_ratio
from tests.support.mlx_server import RUN
from tests.support.sockets import free_port
from tests.support.tiny_mlx import LLAMA, Shape, write_model

OURS, THEIRS = "ours", "mlx_lm.server"
LARGER = Shape(layers=4, hidden=768, heads=12, kv_heads=4, context=4096, random=True)
_SENTENCE = "The quick brown fox jumps over the lazy dog. One two three four five six seven eight nine ten.\n"
_STREAMS = (1, 4, 16)
_TOTAL_TARGETS = {1: 1.0, 16: 1.2}
_FOLLOW_UP_TARGET = 0.2
_LONGEST_START = 120.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer: seconds from the request to each of its pieces, and its tokens."""

    pieces: tuple[float, ...]
    tokens: int

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)]


@dataclass(slots=True)
class Runs:
    """What was measured of one side, by name: a figure for each round."""

    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """One more round."""
        self.figures.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Over the rounds."""
        return statistics.median(self.figures[name])


def main() -> None:
    """The command."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="turns of each side (default 5, quick 1)")
    parser.add_argument("--only", help="the model of this name alone: tiny, or larger")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has mlx-lm and aiohttp")
    run("mlx", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """A table for each model."""
    rounds = chosen.rounds or (1 if chosen.quick else 5)
    shapes = {"tiny": (LLAMA, 96, 1200), "larger, random": (LARGER, 32, 500)}
    if chosen.quick:
        shapes = {"tiny": (LLAMA, 32, 400)}
    tables = []
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        for title, (shape, tokens, long) in shapes.items():
            if chosen.only and not title.startswith(chosen.only):
                continue
            model = write_model(Path(name) / title.split(",")[0], shape)
            tables.append(_model_table(title, model, _Load(tokens, long), rounds, chosen.python))
    return tables


@dataclass(frozen=True, slots=True)
class _Load:
    """Tokens of each answer, and about how many a long prompt has."""

    tokens: int
    long: int


def _model_table(title: str, model: Path, load: _Load, rounds: int, python: str) -> Table:
    say = Progress()
    runs = {OURS: Runs(), THEIRS: Runs()}
    with _server(OURS, model, python) as ours, _server(THEIRS, model, python) as theirs:
        ports = {OURS: ours, THEIRS: theirs}
        for side, port in ports.items():
            asyncio.run(_streams(port, 2, load.tokens, f"warm {side}"))
        for number in range(rounds):
            for side in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
                say(f"{title}: round {number + 1} of {rounds}, {side}")
                asyncio.run(_round(ports[side], load, runs[side], number))
    return _table(title, runs)


async def _round(port: int, load: _Load, runs: Runs, number: int) -> None:
    for count in _STREAMS:
        began = time.perf_counter()
        answers = await _streams(port, count, load.tokens, f"{number} {count}")
        seconds = time.perf_counter() - began
        runs.add(f"first {count}", statistics.median(answer.first for answer in answers))
        runs.add(f"total {count}", sum(answer.tokens for answer in answers) / seconds)
    prompt = f"{number} follow-up. " + _SENTENCE * (load.long // 27)
    cold, said = await _ask(port, prompt, 8)
    warm, _ = await _ask(port, prompt + said + " And then", 8)
    runs.add("cold", cold.first)
    runs.add("follow-up", warm.first)
    await _interference(port, load, runs, number)


async def _interference(port: int, load: _Load, runs: Runs, number: int) -> None:
    """Four answers are being written when a long prompt comes: how long does each wait for its next token?"""
    running = asyncio.create_task(_streams(port, 4, load.tokens * 4, f"{number} running"))
    await asyncio.sleep(0.3)
    before = time.perf_counter()
    long, _ = await _ask(port, f"{number} in between. " + _SENTENCE * (load.long // 27), 4)
    answers = await running
    del before
    gaps = sorted(gap for answer in answers for gap in answer.gaps)
    runs.add("worst gap", gaps[-1])
    runs.add("gap", statistics.median(gaps))
    runs.add("long first", long.first)


async def _streams(port: int, count: int, tokens: int, mark: str) -> list[Stream]:
    asked = (_ask(port, f"{mark} {index}: One two", tokens) for index in range(count))
    return [stream for stream, _ in await asyncio.gather(*asked)]


async def _ask(port: int, prompt: str, tokens: int) -> tuple[Stream, str]:
    """A streamed completion, read piece by piece."""
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    began = time.perf_counter()
    writer.write(head.encode() + body)
    pieces: list[float] = []
    text: list[str] = []
    counted = 0
    while line := await reader.readline():
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        document: dict[str, Any] = json.loads(line[6:])
        usage = document.get("usage")
        counted = usage["completion_tokens"] if usage else counted
        said = "".join(choice.get("text") or "" for choice in document.get("choices", ()))
        if said:
            pieces.append(time.perf_counter() - began)
            text.append(said)
    writer.close()
    if not pieces:
        raise BenchError(f"no answer on port {port} to {prompt[:40]!r}")
    return Stream(tuple(pieces), counted or len(pieces)), "".join(text)


@contextlib.contextmanager
def _server(side: str, model: Path, python: str) -> Iterator[int]:
    """One of the two, on a port of its own."""
    port = free_port()
    where = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    ours = [python, str(RUN), *where, "--parallel", "32", "--ctx-size", "4096"]
    theirs = [python, "-m", "mlx_lm", "server", *where]
    with tempfile.TemporaryDirectory(prefix="eh-mlx-") as scratch:
        (Path(scratch) / "hub").mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "HOME": scratch,
            "HF_HOME": scratch,
            "HF_HUB_OFFLINE": "1",
            "ENGINEHOUSE_MLX_SCRATCH": scratch,
            "TMPDIR": scratch,
        }
        command = ours if side == OURS else theirs
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(_until_up(port, process))
            yield port
        finally:
            process.kill()
            process.wait()


async def _until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LONGEST_START
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, BenchError):
            await _ask(port, "One two", 1)
            return
        await asyncio.sleep(0.2)
    raise BenchError(f"{' '.join(map(str, process.args))} did not come up")  # type: ignore[arg-type]  # a list of words


def _table(title: str, runs: dict[str, Runs]) -> Table:
    table = Table(f"{title} model", ["what", OURS, THEIRS, "ratio (range over rounds)", "target"])
    ours, theirs = runs[OURS], runs[THEIRS]

    def row(label: str, name: str, target: str = "", *, rate: bool = False) -> None:
        ratios = _ratios(ours, theirs, name)
        show = (lambda value: f"{value:,.0f}/s") if rate else milliseconds
        table.row(label, show(ours.median(name)), show(theirs.median(name)), show_ratio(ratios), target)

    for count in _STREAMS:
        streams = f"{count} stream{'s' if count > 1 else ''}"
        goal = _TOTAL_TARGETS.get(count)
        reached = "" if goal is None else _reached(_ratios(ours, theirs, f"total {count}"), goal)
        row(f"{streams}: tokens, total", f"total {count}", reached, rate=True)
        row(f"{streams}: first token", f"first {count}")
    row("long prompt, cold: first token", "cold")
    shares = [warm / cold for warm, cold in zip(ours.figures["follow-up"], ours.figures["cold"], strict=True)]
    share = statistics.median(shares)
    met = "met" if share <= _FOLLOW_UP_TARGET else "MISSED"
    row("its follow-up: first token", "follow-up", f"{share:.2f} of cold, at most {_FOLLOW_UP_TARGET}: {met}")
    row("4 streams while a long prompt is read: median gap", "gap")
    row("the same: worst gap", "worst gap")
    row("the same: the long prompt's first token", "long first")
    return table


def _ratios(ours: Runs, theirs: Runs, name: str) -> list[float]:
    return [own / other for own, other in zip(ours.figures[name], theirs.figures[name], strict=True)]


def _reached(ratios: Sequence[float], goal: float) -> str:
    return f"at least {goal}: {'met' if statistics.median(ratios) >= goal else 'MISSED'}"


if __name__ == "__main__":
    main()
