"""Coming back to a long conversation after its model was switched away: first token, against computing it anew.

Two models have memory for one, and one slot each. A conversation of some length is held with the first; a short one
takes its slot, and then the second model its memory. What follows is the time to the first token

* in the same launch, after the short conversation had the slot;
* after the switch, with the model loaded before the clock starts: the same question again, and the next one;
* after the switch, with the load.

The baseline is the first token of the same prompt when it was new, with the model loaded; with the load, that and the
load that was measured. Every return must say that it was restored.

What the save of a long conversation costs another session is told by a short one that takes its slot, right behind it
or a little later: once after the long one went on, so that there is something to save, and once after it only came
back, so that its file is there already; all else is alike. ``--nothing-saved`` compares with a daemon that saves
nothing too, where each round computes the long one anew.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.daemon import Daemon, config, running_daemon
from bench.support.engines import add_engine_options, ask, real_build, real_model
from bench.support.errors import BenchError
from bench.support.http import connect, post
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.stats import verdict

_SIZES = {False: (500, 2500, 6000), True: (300,)}
_ROUNDS = {False: 3, True: 1}
_TARGET = 100.0
_TARGET_SIZE = 2500
_MOST_DELAY = 0.050
_CTX = 8192
# Seconds between the end of the long answer and the short question: others do not come right behind it each time.
_GAPS = (0.0, 0.5, 1.0)
# Share of its length by which the long one goes on, and words at least: enough to compute that a save is worth it.
_FURTHER = 1 / 12
_FURTHER_WORDS = 150
# Tokens by which a conversation grows in a round, and its files with it.
_NEAR = 700
_NO_RESERVE = {"memory": "0B"}
# About as many tokens as words, in SmolLM2's vocabulary.
_WORDS = (
    "river",
    "old",
    "ran",
    "past",
    "mill",
    "where",
    "nobody",
    "had",
    "lived",
    "for",
    "years",
    "birds",
    "sang",
    "the",
)
_TOKEN = re.compile(rb'"content":"[^"]')
_HEADER = re.compile(rb"(?mi)^(x-enginehouse-[a-z-]+): ([^\r]*)\r$")


@dataclass(slots=True)
class _Times:
    """Seconds of one size, one value a round."""

    tokens: int = 0
    fresh: list[float] = field(default_factory=list)
    after_handover: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    next_turn: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    with_load: list[float] = field(default_factory=list)
    short_after_save: dict[float, list[float]] = field(default_factory=dict)
    short: dict[float, list[float]] = field(default_factory=dict)
    nothing_saved: list[float] = field(default_factory=list)


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="conversations of each size (default 3, quick 1)")
    parser.add_argument("--pairs", type=int, default=1, help="of short questions at each distance, a round (default 1)")
    parser.add_argument("--nothing-saved", action="store_true", help="compare with a daemon that saves nothing too")
    parser.add_argument("--sizes", type=int, nargs="+", help="tokens (default 500 2500 6000, quick 300)")
    run("return", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """Two tables: the return, and what saves cost others."""
    rounds = chosen.rounds or _ROUNDS[chosen.quick]
    build, model = real_build(chosen.engine), str(real_model(chosen.model))
    models = {name: {"file": model, "launch": {"slots": 1, "ctx_size": size}} for name, size in _MODELS.items()}
    say = Progress()
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        folder = Path(name)
        document = config(models, build.as_config())
        sections = {
            "host": {"memory": f"{_room_for_one(folder, document)}B", "reserve": _NO_RESERVE},
            "concessions": [],
            "broker": {**document["broker"], "eviction": {"min_idle": "1ms"}},
        }
        with running_daemon(folder, {**document, **sections}) as daemon:
            daemon.wait_until_known()
            found: dict[int, _Times] = {size: _Times() for size in chosen.sizes or _SIZES[chosen.quick]}
            for size, times in found.items():
                for number in range(rounds):
                    say(f"{size} tokens, round {number + 1} of {rounds}")
                    _round(daemon, size, f"{size} {number}", times, chosen.pairs)
            transfers = _transfers(daemon.log)
        if chosen.nothing_saved:
            with running_daemon(folder, {**document, **sections, "cache": {"budget": 0}}) as daemon:
                daemon.wait_until_known()
                daemon.load("one")
                for size, times in found.items():
                    for number in range(rounds):
                        say(f"{size} tokens, nothing saved, round {number + 1} of {rounds}")
                        times.nothing_saved.append(_after_a_long_one(daemon, size, f"{size} {number}"))
        say.done()
        return [_returns(found), _delays(found, transfers)]


_MODELS = {"one": _CTX, "two": _CTX - 512}


def _room_for_one(folder: Path, document: Mapping[str, Any]) -> int:
    planned = {**document, "host": {"memory": "1TiB", "reserve": _NO_RESERVE}}
    with running_daemon(folder, planned) as daemon:
        daemon.wait_until_known()
        needed = [daemon.ask("GET", f"/admin/v1/plan?model={name}")["ledger"]["needed"]["host"] for name in _MODELS]
    return int(max(needed) * 1.2)


def _round(daemon: Daemon, size: int, seed: str, times: _Times, pairs: int) -> None:
    """One conversation, from its first question to its third return."""
    daemon.load("one")
    long = [{"role": "user", "content": _text(size, seed)}]
    seconds, said = _asked(daemon, long, "one")
    times.tokens = said.tokens
    times.fresh.append(seconds)
    _asked(daemon, _short(f"{seed} a"), "one")
    times.after_handover.append(_asked(daemon, long, "one", "restored")[0])
    _asked(daemon, _short(f"{seed} c"), "two")
    daemon.load("one")
    times.again.append(_asked(daemon, long, "one", "restored")[0])
    _asked(daemon, _short(f"{seed} d"), "two")
    daemon.load("one")
    further = [*long, {"role": "assistant", "content": said.text}, {"role": "user", "content": "Go on."}]
    times.next_turn.append(_asked(daemon, further, "one", "restored")[0])
    _asked(daemon, _short(f"{seed} e"), "two")
    seconds, said = _asked(daemon, further, "one", "restored")
    times.with_load.append(seconds)
    times.load.append(said.load)
    words = max(_FURTHER_WORDS, round(size * _FURTHER))
    for number in range(pairs):
        for gap in _GAPS:
            longer = [*further, {"role": "assistant", "content": said.text}]
            longer += [{"role": "user", "content": _text(words, f"{seed} {number} {gap}")}]
            _asked(daemon, longer, "one")
            times.short_after_save.setdefault(gap, []).append(_taken_over(daemon, gap, f"{seed} {number} {gap} f"))
            _asked(daemon, longer, "one", "restored")
            times.short.setdefault(gap, []).append(_taken_over(daemon, gap, f"{seed} {number} {gap} g"))


def _taken_over(daemon: Daemon, gap: float, seed: str) -> float:
    """First token of a short conversation that takes the slot of the one before it, ``gap`` seconds after that."""
    time.sleep(gap)
    return _asked(daemon, _short(seed), "one")[0]


def _after_a_long_one(daemon: Daemon, size: int, seed: str) -> float:
    """First token of a short conversation that takes a long one's slot, where nothing is saved."""
    _asked(daemon, [{"role": "user", "content": _text(size, seed)}], "one")
    return _asked(daemon, _short(f"{seed} a"), "one")[0]


@dataclass(frozen=True, slots=True)
class _Said:
    """What an answer held: its text, the tokens of its prompt, the seconds of the load that it waited for."""

    text: str
    tokens: int
    load: float


def _asked(
    daemon: Daemon, messages: list[dict[str, str]], model: str, outcome: str | None = None
) -> tuple[float, _Said]:
    """Seconds to the first token, and the answer, which is read to its end.

    Raises:
        BenchError: no token, or the conversation was not found as expected.
    """
    body = {**ask(model, stream=True, tokens=2, temperature=0), "messages": messages}
    body["stream_options"] = {"include_usage": True}
    request = post(daemon.address, body).request
    came, first = b"", None
    with connect(daemon.address) as sock:
        sock.settimeout(600)
        began = time.perf_counter()
        sock.sendall(request)
        while b"data: [DONE]" not in came:
            data = sock.recv(1 << 16)
            if not data:
                raise BenchError(f"an answer without an end: {came[-300:]!r}")
            came += data
            if first is None and _TOKEN.search(came):
                first = time.perf_counter() - began
    headers = {name.decode().lower(): value.decode() for name, value in _HEADER.findall(came)}
    if first is None:
        raise BenchError(f"an answer without a token: {came[:300]!r}")
    if outcome is not None and headers.get("x-enginehouse-session") != outcome:
        raise BenchError(f"a conversation was {headers.get('x-enginehouse-session')}, where {outcome} was expected")
    text = "".join(piece.decode() for piece in re.findall(rb'"content":"((?:[^"\\]|\\.)*)"', came))
    tokens = re.findall(rb'"prompt_tokens":(\d+)', came)
    load = float(headers.get("x-enginehouse-load-ms", "0")) / 1000
    return first, _Said(text.replace("\\n", "\n"), int(tokens[-1]) if tokens else 0, load)


def _text(tokens: int, seed: str) -> str:
    chosen = random.Random(seed)
    return f"{seed}: " + " ".join(chosen.choice(_WORDS) for _ in range(tokens - 40))


def _short(seed: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{seed}: say hello."}]


def _returns(found: Mapping[int, _Times]) -> Table:
    columns = ["tokens", "prefill", "back, same launch", "back after a switch", "times faster", "next question"]
    columns += ["load", "prefill with load", "back with load", "times faster", "rounds"]
    table = Table("Return to a conversation after its model was switched away: first token", columns)
    for size, times in found.items():
        median = statistics.median
        fresh, load = median(times.fresh), median(times.load)
        faster = fresh / median(times.again)
        table.row(
            f"{times.tokens}",
            milliseconds(fresh),
            milliseconds(median(times.after_handover)),
            milliseconds(median(times.again)),
            f"{faster:.0f}",
            milliseconds(median(times.next_turn)),
            milliseconds(load),
            milliseconds(fresh + load),
            milliseconds(median(times.with_load)),
            f"{(fresh + load) / median(times.with_load):.1f}",
            str(len(times.fresh)),
        )
        if size == _TARGET_SIZE:
            met = verdict(_TARGET / faster, 1.0)
            table.notes.append(f"target: {_TARGET:.0f} times faster than prefill at {size} tokens; {faster:.0f}: {met}")
    return table


def _transfers(log: Path) -> list[dict[str, Any]]:
    """What the daemon's log tells of saves and restores."""
    lines = (line for line in log.read_text(errors="replace").splitlines() if '"session_' in line)
    return [json.loads(line) for line in lines]


def _took(transfers: Sequence[Mapping[str, Any]], event: str, tokens: int) -> str:
    seconds = [row["seconds"] for row in transfers if row["event"] == event and abs(row["tokens"] - tokens) < _NEAR]
    return milliseconds(statistics.median(seconds)) if seconds else "-"


def _delays(found: Mapping[int, _Times], transfers: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["tokens", "save took", "restore took", "short one, its file there", "short one, with a save"]
    columns += ["added at the median", *(f"{gap:g} s behind" for gap in _GAPS), "nothing saved"]
    table = Table("What saving a conversation costs the one that takes its slot", columns)
    worst = 0.0
    for times in found.values():
        added = {gap: _differences(times.short_after_save[gap], times.short[gap]) for gap in _GAPS}
        every = [seconds for each in added.values() for seconds in each]
        worst = max(worst, statistics.median(every))
        alone, behind = (_median_of_all(short) for short in (times.short, times.short_after_save))
        saved, restored = (_took(transfers, event, times.tokens) for event in ("session_saved", "session_restored"))
        none = milliseconds(statistics.median(times.nothing_saved)) if times.nothing_saved else "-"
        by_gap = (_signed(statistics.median(each)) for each in added.values())
        row = (saved, restored, alone, behind, _signed(statistics.median(every)), *by_gap, none)
        table.row(f"{times.tokens}", *row)
    table.notes.append("the short one came 0, 0.5 and 1 s after the end of the long one's answer, in turn")
    table.notes.append(f"target: at most {_MOST_DELAY * 1000:.0f} ms at the median: {verdict(worst, _MOST_DELAY)}")
    return table


def _differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [after - alone for after, alone in zip(one, other, strict=True)]


def _median_of_all(times: Mapping[float, Sequence[float]]) -> str:
    return milliseconds(statistics.median(seconds for each in times.values() for seconds in each))


def _signed(seconds: float) -> str:
    return f"{seconds * 1000:+.1f} ms"


if __name__ == "__main__":
    main()
