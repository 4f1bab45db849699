"""Requests a second, and what each takes, with 1, 16 and 64 connections: through the daemon and its rivals.

Ways are measured in turn for a short time each, over and over; ratios are taken round by round. The daemon's CPU is
its own process alone. Small chats, max_tokens 1, whole answers unless `--stream`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.support.engines import add_engine_options, real_model
from bench.support.http import Burst, Load
from bench.support.machine import cpu_seconds
from bench.support.others import find_nginx
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.sides import CANNED, DAEMON, REAL, ROUTER, STRAIGHT, TOY, Ways, open_house
from bench.support.stats import Samples, percentile, show_ratio, verdict

_CONNECTIONS = (1, 16, 64)
_KINDS = {
    CANNED: "canned engine (constant bytes)",
    TOY: "real llama-server, toy weights",
    REAL: "real llama-server, real model",
}
# A token of a real model takes so much longer that a turn of the same length would hold too few of them.
_LONGER = {REAL: 5}
# From here on the generator itself was short of CPU, and a rate is a lower bound.
_BUSY = 0.9


@dataclass(slots=True)
class _Rates:
    """What one way did with one number of connections, round by round."""

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    busy: float = 0.0

    def add(self, burst: Burst, cpu: float | None) -> None:
        self.rates.append(burst.rate)
        self.latencies += burst.latencies
        self.busy = max(self.busy, burst.busy)
        if cpu is not None:
            self.cpu.append(cpu / len(burst.latencies))

    def as_samples(self) -> Samples:
        return Samples([rate] for rate in self.rates)


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--nginx", type=Path, help="an nginx; else the one on PATH, else none")
    parser.add_argument("--stream", action="store_true", help="streamed answers")
    parser.add_argument("--rounds", type=int, help="turns of each way (default 4, quick 1)")
    parser.add_argument("--seconds", type=float, help="of each turn (default 0.8, quick 0.2)")
    run("requests", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """A table for each engine."""
    say = Progress()
    rounds = chosen.rounds or (1 if chosen.quick else 4)
    seconds = chosen.seconds or (0.2 if chosen.quick else 0.8)
    tables = []
    real = real_model(chosen.model)
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        nginx = find_nginx(chosen.nginx)
        with open_house(Path(name), engine=chosen.engine, nginx_path=nginx, model_file=real) as house:
            for model in (CANNED, TOY, REAL):
                ways = house.ways(model, stream=chosen.stream)
                results = {}
                for count in _CONNECTIONS:
                    say(f"{_KINDS[model]}, {count} connections")
                    results[count] = _alternate(ways, count, rounds, seconds * _LONGER.get(model, 1))
                tables.append(_table(ways, results, stream=chosen.stream))
    return tables


def _alternate(ways: Ways, connections: int, rounds: int, seconds: float) -> dict[str, _Rates]:
    found = {name: _Rates() for name in ways.targets}
    with ExitStack() as stack:
        loads = {name: stack.enter_context(Load(target, connections)) for name, target in ways.targets.items()}
        order: Sequence[str] = list(loads)
        for load in loads.values():
            load.run(requests=2 * connections)
        for _ in range(rounds):
            for name in order:
                pid = ways.pids.get(name)
                before = cpu_seconds(pid) if pid else 0.0
                burst = loads[name].run(seconds=seconds)
                found[name].add(burst, cpu_seconds(pid) - before if pid else None)
            order = order[::-1]
    return found


def _table(ways: Ways, results: dict[int, dict[str, _Rates]], *, stream: bool) -> Table:
    form = "streamed" if stream else "whole answer"
    columns = ["connections, way", "requests/s", "ratio (range over rounds)", "median", "99 %", "own CPU", "requests"]
    table = Table(f"Requests a second: {_KINDS[ways.model]}, max_tokens 1, {form}", columns)
    for count, by_way in results.items():
        straight = by_way[STRAIGHT].as_samples()
        for name, own in by_way.items():
            ratio = "1 (baseline)" if name == STRAIGHT else show_ratio(own.as_samples().ratios(straight))
            table.row(
                f"{count}, {name}",
                f"{statistics.median(own.rates):,.0f}",
                ratio,
                milliseconds(statistics.median(own.latencies)),
                milliseconds(percentile(own.latencies, 0.99)),
                f"{statistics.median(own.cpu) * 1e6:,.0f} µs" if own.cpu else "-",
                f"{len(own.latencies):,} in {len(own.rates)} turns",
            )
            if own.busy > _BUSY:
                table.notes.append(
                    f"{count}, {name}: the load generator was {own.busy:.0%} busy; the rate is a lower bound"
                )
    table.notes.append("own CPU: CPU time of the process in between, per request")
    table.notes += ways.missing
    if ROUTER in ways.targets:
        by_way = results[16]
        ratios = by_way[ROUTER].as_samples().ratios(by_way[DAEMON].as_samples())
        met = verdict(statistics.median(ratios), 1.0)
        table.notes.append(
            f"target: requests/s at 16 no worse than the router's; router / enginehouse = {show_ratio(ratios)}: {met}"
        )
    return table


if __name__ == "__main__":
    main()
