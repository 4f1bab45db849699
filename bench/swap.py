"""Two models in memory for one, asked for in turn: from a request to its first token, through the daemon and by hand.

By hand: the running engine gets SIGTERM, its end is waited for, the other one is spawned with the flags and environment
that the daemon gives it, `/health` is asked each millisecond, and the request is sent as soon as that is well. The
models are one file with two context sizes, in the page cache. Both ways take turns; ratios are taken pair by pair.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.by_hand import first_token, spawn_by_hand, wait_until_healthy
from bench.support.daemon import Daemon, Engine, config, running_daemon, stop_process
from bench.support.engines import add_engine_options, ask, real_build, real_model
from bench.support.errors import BenchError
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.sides import DAEMON
from bench.support.stats import Samples, show_ratio, verdict
from tests.support.sockets import short_socket_folder

_TARGET = 1.10
_MODELS = {"one": 2048, "two": 1536}
_HAND = "stop and start by hand"
# Rounds stop when this is used up: a slow engine gives fewer.
_BUDGET = {False: 150.0, True: 25.0}


@dataclass(slots=True)
class _Swaps:
    """Seconds; one round is both ways once there and once back."""

    tokens: dict[str, Samples] = field(default_factory=lambda: {_HAND: Samples(), DAEMON: Samples()})
    stops: list[float] = field(default_factory=list)


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="swaps there and back of each (default 15, quick 2)")
    run("swap", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """One table."""
    rounds = chosen.rounds or (2 if chosen.quick else 15)
    build, model = real_build(chosen.engine), str(real_model(chosen.model))
    launch = {"slots": 1}
    models = {name: {"file": model, "launch": {**launch, "ctx_size": size}} for name, size in _MODELS.items()}
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name, short_socket_folder() as sockets:
        folder = Path(name)
        sections = {
            "host": {"memory": f"{_room_for_one(folder, config(models, build.as_config()))}B", "reserve": _NO_RESERVE},
            "concessions": [],
            "broker": {"eviction": {"min_idle": "1ms"}, "queue": {"per_caller": 1024, "total": 1024}},
        }
        with running_daemon(folder, {**config(models, build.as_config()), **sections}) as daemon:
            daemon.wait_until_known()
            return [_table(_alternate(daemon, sockets, folder, (rounds, _BUDGET[chosen.quick])))]


_NO_RESERVE = {"memory": "0B"}


def _room_for_one(folder: Path, document: Mapping[str, Any]) -> int:
    """Bytes in which either of the models fits, and not both."""
    planned = {**document, "host": {"memory": "1TiB", "reserve": _NO_RESERVE}}
    with running_daemon(folder, planned) as daemon:
        daemon.wait_until_known()
        ledgers = [daemon.ask("GET", f"/admin/v1/plan?model={model}")["ledger"] for model in _MODELS]
    needed = [ledger["needed"].get("host") for ledger in ledgers]
    if None in needed:
        raise BenchError("the plan does not know what the model needs of the host's memory")
    return int(max(needed) * 1.2)


class _ByHand:
    """The engine that runs by hand, and the swap to the other."""

    def __init__(self, engines: Mapping[str, Engine], folder: Path, sockets: Path, swaps: _Swaps) -> None:
        self._engines = engines
        self._folder = folder
        self._sockets = sockets
        self._swaps = swaps
        self._running: subprocess.Popen[bytes] | None = None

    def swap_to(self, model: str) -> float:
        """Seconds from the wish to the first token."""
        began = time.perf_counter()
        if self._running is not None:
            self._running.terminate()
            self._running.wait()
            self._swaps.stops.append(time.perf_counter() - began)
        path, log = self._sockets / f"{model}.sock", self._folder / f"{model}.log"
        self._running = spawn_by_hand(self._engines[model], path, log)
        wait_until_healthy(self._running, path, time.perf_counter(), log)
        first_token(path, _body(model), self._engines[model].headers)
        return time.perf_counter() - began

    def end(self) -> None:
        """Stop what runs."""
        if self._running is not None:
            stop_process(self._running)


def _alternate(daemon: Daemon, sockets: Path, folder: Path, bounds: tuple[int, float]) -> _Swaps:
    say, swaps = Progress(), _Swaps()
    engines = {model: daemon.load(model) for model in _MODELS}  # the second one has the first go
    by_hand = _ByHand(engines, folder, sockets, swaps)

    def through_daemon(model: str) -> float:
        began = time.perf_counter()
        first_token(daemon.address, _body(model))
        return time.perf_counter() - began

    ways: list[tuple[str, Callable[[str], float]]] = [(_HAND, by_hand.swap_to), (DAEMON, through_daemon)]
    try:
        for model in reversed(_MODELS):
            by_hand.swap_to(model)  # once unmeasured; from here on both ways hold the first model
        through_daemon(next(iter(_MODELS)))
        swaps.stops.clear()
        end = time.monotonic() + bounds[1]
        for number in range(bounds[0]):
            say(f"round {number + 1} of {bounds[0]}")
            for model in reversed(_MODELS):
                for name, swap in ways:
                    swaps.tokens[name].add([swap(model)])
                ways.reverse()
            if time.monotonic() > end:
                break
    finally:
        by_hand.end()
    _check(daemon, swaps)
    return swaps


def _check(daemon: Daemon, swaps: _Swaps) -> None:
    """Every request of the daemon's side has swapped: one that had not would be far too quick.

    Raises:
        BenchError: else.
    """
    launches = sum(row["generation"] for row in daemon.ask("GET", "/admin/v1/status")["instances"])
    expected = len(_MODELS) + 1 + swaps.tokens[DAEMON].count
    if launches != expected:
        raise BenchError(f"{launches} launches where {expected} were expected: not every request was a swap")


def _body(model: str) -> dict[str, Any]:
    return ask(model, stream=True, tokens=4, text="Say hello.", temperature=0)


def _table(swaps: _Swaps) -> Table:
    columns = ["way", "median", "99 %", "added at the median", "ratio (range over pairs)", "swaps"]
    table = Table("Swap: request for the other of two models, room for one, to first token", columns)
    hand = swaps.tokens[_HAND]
    for name, own in swaps.tokens.items():
        added = "-" if name == _HAND else f"{(own.median - hand.median) * 1000:+.1f} ms"
        ratio = "1 (baseline)" if name == _HAND else show_ratio(own.ratios(hand))
        table.row(name, milliseconds(own.median), milliseconds(own.p99), added, ratio, str(own.count))
    ratios = swaps.tokens[DAEMON].ratios(hand)
    met = verdict(statistics.median(ratios), _TARGET)
    table.notes.append(f"by hand, the stop alone took {milliseconds(statistics.median(swaps.stops))} at the median")
    middle = f"{statistics.median(ratios):.3f}"
    table.notes.append(f"target: at most {_TARGET:.2f} times by hand; median of the pairs' ratios {middle}: {met}")
    return table


if __name__ == "__main__":
    main()
