"""From the end of an engine to the next first token, and from the order to stop to its memory being back.

Recovery: the daemon's ready engine is killed with SIGKILL, and a request is sent at once; the time runs from the kill
to the first token of the next launch. The baseline is a bare cold start of the same executable with the same flags. The
wait before a restart (`restart.initial`, 1 s by default) is set to 10 ms, since it would hide all else.

Stop: `unload` answers when every process of the engine is gone, and so the memory that it held; the baseline is the
same executable, stopped by SIGTERM and waited for by its parent.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.support.by_hand import cold_start_by_hand, first_token
from bench.support.daemon import Daemon, Engine, config, running_daemon
from bench.support.engines import add_engine_options, ask, real_build, real_model
from bench.support.errors import BenchError
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.sides import DAEMON, REAL
from bench.support.stats import Samples, show_ratio
from tests.support.sockets import short_socket_folder

_HAND = "by hand"
_LAUNCH = {"slots": 2, "ctx_size": 2048}
_RESTART = {"initial": "10ms", "max": "10ms", "budget": 10_000}
# Rounds stop when this is used up: a slow engine gives fewer.
_BUDGET = {False: 120.0, True: 20.0}


@dataclass(slots=True)
class _Times:
    """Seconds; one value a round, so that rounds are compared in pairs."""

    tokens: dict[str, Samples] = field(default_factory=lambda: {_HAND: Samples(), DAEMON: Samples()})
    stops: dict[str, Samples] = field(default_factory=lambda: {_HAND: Samples(), DAEMON: Samples()})
    held: list[int] = field(default_factory=list)
    left: int = 0


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="kills and stops of each (default 20, quick 2)")
    run("recovery", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """Two tables: kill to first token, and stop to memory back."""
    say = Progress()
    rounds = chosen.rounds or (2 if chosen.quick else 20)
    build = real_build(chosen.engine)
    model = {"file": str(real_model(chosen.model)), "launch": _LAUNCH}
    document = config({REAL: model}, build.as_config(), supervision={"restart": _RESTART})
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name, short_socket_folder() as sockets:
        folder = Path(name)
        with running_daemon(folder, document) as daemon:
            daemon.wait_until_known()
            times = _alternate(daemon, sockets, folder, rounds, _BUDGET[chosen.quick], say)
            return [_recovery(times), _stops(times)]


def _alternate(daemon: Daemon, sockets: Path, folder: Path, rounds: int, budget: float, say: Progress) -> _Times:
    # Another text each time: a body that is there at two kills is refused, as its engine's killer.
    numbers = itertools.count(100)

    def asked() -> dict[str, Any]:
        return ask(REAL, stream=True, tokens=4, text=f"Say hello, {next(numbers)}.", temperature=0)

    body = asked()
    times = _Times()
    engine = daemon.load(REAL)
    first_token(daemon.address, body)

    def by_hand() -> None:
        _, token = cold_start_by_hand(engine, body, sockets / "hand.sock", folder / "hand.log")
        times.tokens[_HAND].add([token])
        times.stops[_HAND].add([_stop_by_hand(engine, sockets / "stop.sock", body, folder / "hand.log")])

    def through_daemon() -> None:
        pid = daemon.load(REAL).pid
        question = asked()
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        first_token(daemon.address, question)
        times.tokens[DAEMON].add([time.perf_counter() - began])
        next_one = psutil.Process(daemon.load(REAL).pid)
        times.held.append(next_one.memory_info().rss)
        began = time.perf_counter()
        daemon.unload(REAL)
        times.stops[DAEMON].add([time.perf_counter() - began])
        times.left += next_one.is_running()

    order: list[Callable[[], None]] = [by_hand, through_daemon]
    end = time.monotonic() + budget
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for measured in order:
            measured()
        order.reverse()
        if time.monotonic() > end:
            break
    return times


def _stop_by_hand(engine: Engine, path: Path, body: dict[str, object], log: Path) -> float:
    """Seconds from SIGTERM to the end of an engine that has served one request."""
    argv = list(engine.argv)
    argv[argv.index("--host") + 1] = str(path)
    path.unlink(missing_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            argv, env=dict(engine.env), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            _first_token_when_ready(path, body, engine)
            began = time.perf_counter()
            process.terminate()
            process.wait()
            return time.perf_counter() - began
        finally:
            process.kill()
            process.wait()


def _first_token_when_ready(path: Path, body: dict[str, object], engine: Engine) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            first_token(path, body, engine.headers)
        except (OSError, BenchError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _recovery(times: _Times) -> Table:
    table = Table("Recovery: engine killed to next first token", _COLUMNS)
    _rows(table, times.tokens)
    table.notes.append("by hand: a bare cold start, spawn to first token; the daemon first has to see the death")
    return table


def _stops(times: _Times) -> Table:
    table = Table("Stop: order to stop to memory back", _COLUMNS)
    _rows(table, times.stops)
    held = statistics.median(times.held) / 2**20
    table.notes.append(
        f"the engine held {held:.0f} MiB; processes of it that were left when `unload` answered: {times.left}"
    )
    return table


_COLUMNS = ["way", "median", "99 %", "added at the median", "ratio (range over pairs)", "rounds"]


def _rows(table: Table, samples: dict[str, Samples]) -> None:
    hand = samples[_HAND]
    for name, own in samples.items():
        added = "-" if name == _HAND else f"{(own.median - hand.median) * 1000:+.1f} ms"
        ratio = "1 (baseline)" if name == _HAND else show_ratio(own.ratios(hand))
        table.row(name, milliseconds(own.median), milliseconds(own.p99), added, ratio, str(own.count))


if __name__ == "__main__":
    main()
