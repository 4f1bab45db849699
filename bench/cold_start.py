"""From a request with the engine down to its first token, through the daemon and by hand.

By hand: the same executable with the same flags and environment is spawned, `/health` is asked each millisecond, and
the request is sent as soon as that is well. Both start with the model's file in the page cache, in turn; ratios are
taken pair by pair.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.support.by_hand import cold_start_by_hand, first_token
from bench.support.daemon import Daemon, config, running_daemon
from bench.support.engines import add_engine_options, ask, real_build, real_model
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.sides import DAEMON, REAL
from bench.support.stats import Samples, show_ratio, verdict
from tests.support.sockets import short_socket_folder

_TARGET = 1.05
_CTX_SIZE = 2048
_SLOTS = 2
_HAND = "by hand"
_LOAD_MS = re.compile(rb"x-enginehouse-load-ms: *(\d+)", re.IGNORECASE)
# Starts stop when this is used up: a slow engine gives fewer rounds.
_BUDGET = {False: 100.0, True: 14.0}


@dataclass(slots=True)
class _Starts:
    """Seconds; one value a round, so that rounds are compared in pairs."""

    tokens: dict[str, Samples] = field(default_factory=lambda: {_HAND: Samples(), DAEMON: Samples()})
    healthy: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="starts of each (default 20, quick 2)")
    run("cold_start", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """One table."""
    say = Progress()
    rounds = chosen.rounds or (2 if chosen.quick else 20)
    build = real_build(chosen.engine)
    model = {"file": str(real_model(chosen.model)), "launch": {"slots": _SLOTS, "ctx_size": _CTX_SIZE}}
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name, short_socket_folder() as sockets:
        folder = Path(name)
        with running_daemon(folder, config({REAL: model}, build.as_config())) as daemon:
            daemon.wait_until_known()
            starts = _alternate(daemon, sockets, folder, rounds, _BUDGET[chosen.quick], say)
            return [_table(starts)]


def _alternate(daemon: Daemon, sockets: Path, folder: Path, rounds: int, budget: float, say: Progress) -> _Starts:
    body = ask(REAL, stream=True, tokens=4, text="Say hello.", temperature=0)
    engine = daemon.load(REAL)
    first_token(daemon.address, body)
    daemon.unload(REAL)
    starts = _Starts()

    def by_hand() -> None:
        healthy, token = cold_start_by_hand(engine, body, sockets / "hand.sock", folder / "hand.log")
        starts.healthy.append(healthy)
        starts.tokens[_HAND].add([token])

    def through_daemon() -> None:
        began = time.perf_counter()
        came = first_token(daemon.address, body)
        starts.tokens[DAEMON].add([time.perf_counter() - began])
        load = _LOAD_MS.search(came)
        if load is not None:
            starts.loads.append(int(load[1]) / 1000)
        daemon.unload(REAL)

    order: list[Callable[[], None]] = [by_hand, through_daemon]
    by_hand()  # once unmeasured: the first one reads files that the daemon had not needed
    starts.tokens[_HAND].rounds.clear()
    starts.healthy.clear()
    end = time.monotonic() + budget
    for number in range(rounds):
        say(f"start {number + 1} of {rounds}")
        for start in order:
            start()
        order.reverse()
        if time.monotonic() > end:
            break
    return starts


def _table(starts: _Starts) -> Table:
    columns = ["way", "median", "99 %", "added at the median", "ratio (range over pairs)", "starts"]
    table = Table("Cold start: request to first token, engine down", columns)
    hand = starts.tokens[_HAND]
    for name, own in starts.tokens.items():
        added = "-" if name == _HAND else f"{(own.median - hand.median) * 1000:+.1f} ms"
        ratio = "1 (baseline)" if name == _HAND else show_ratio(own.ratios(hand))
        table.row(name, milliseconds(own.median), milliseconds(own.p99), added, ratio, str(own.count))
    ratios = starts.tokens[DAEMON].ratios(hand)
    met = verdict(statistics.median(ratios), _TARGET)
    healthy, load = statistics.median(starts.healthy), statistics.median(starts.loads or [0.0])
    table.notes.append(
        f"by hand, healthy after {milliseconds(healthy)} at the median; the daemon says its load took "
        f"{milliseconds(load)}, plan included"
    )
    table.notes.append(
        f"target: at most {_TARGET} times by hand; median of the pairs' ratios {statistics.median(ratios):.3f}: {met}"
    )
    return table


if __name__ == "__main__":
    main()
