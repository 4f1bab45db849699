"""What a small chat takes through the daemon, on one connection, against the same chat straight to the same engine.

Ways are measured in turn, in blocks of requests, over and over; ratios are taken block by block. Engines: `canned`
answers with constant bytes at once, so that only the way there is measured; `toy` is the real llama-server with
weights of a few kilobytes; `real` is the real one with a real model, for one token.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from bench.support.engines import add_engine_options, real_model
from bench.support.http import Load
from bench.support.others import find_nginx
from bench.support.report import Progress, Table, milliseconds, options, run
from bench.support.sides import CANNED, DAEMON, REAL, ROUTER, STRAIGHT, TOY, Ways, open_house
from bench.support.stats import Samples, show_ratio, verdict

_KINDS = {
    CANNED: "canned engine (constant bytes)",
    TOY: "real llama-server, toy weights",
    REAL: "real llama-server, real model",
}

# Seconds for each table.
_BUDGET = {False: 18.0, True: 2.0}


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--nginx", type=Path, help="an nginx; else the one on PATH, else none")
    parser.add_argument("--rounds", type=int, help="blocks on each way (default 20, quick 4)")
    run("added_latency", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """A table for each engine and form of answer."""
    say = Progress()
    rounds = chosen.rounds or (4 if chosen.quick else 20)
    block = {CANNED: 50, TOY: 50, REAL: 3 if chosen.quick else 10}
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        house_options = {"engine": chosen.engine, "model_file": real_model(chosen.model)}
        with open_house(Path(name), **house_options, nginx_path=find_nginx(chosen.nginx)) as house:
            tables = []
            for model, stream in product((CANNED, TOY, REAL), (False, True)):
                say(f"{_KINDS[model]}, {'streamed' if stream else 'whole answers'}")
                ways = house.ways(model, stream=stream)
                samples = alternate(ways, rounds, block[model], _BUDGET[chosen.quick])
                tables.append(_table(ways, samples, stream=stream))
    return tables


def alternate(ways: Ways, rounds: int, block: int, budget: float) -> dict[str, Samples]:
    """Blocks of requests on one connection, way by way, forwards in one round and backwards in the next.

    No round begins after ``budget`` seconds: a slow engine gives fewer.
    """
    end = time.monotonic() + budget
    samples = {name: Samples() for name in ways.targets}
    with ExitStack() as stack:
        loads = {name: stack.enter_context(Load(target)) for name, target in ways.targets.items()}
        order: Sequence[str] = list(loads)
        for _ in range(rounds):
            for name in order:
                samples[name].add(loads[name].run(requests=block).latencies)
            order = order[::-1]
            if time.monotonic() > end:
                break
    return samples


def _table(ways: Ways, samples: dict[str, Samples], *, stream: bool) -> Table:
    form = "streamed" if stream else "whole answer"
    title = f"Added latency, one connection: {_KINDS[ways.model]}, max_tokens 1, {form}"
    table = Table(title, ["way", "median", "99 %", "added at the median", "ratio (range over rounds)", "requests"])
    straight = samples[STRAIGHT]
    for name, own in samples.items():
        added = "-" if name == STRAIGHT else f"{(own.median - straight.median) * 1000:+.2f} ms"
        ratio = "1 (baseline)" if name == STRAIGHT else show_ratio(own.ratios(straight))
        table.row(name, milliseconds(own.median), milliseconds(own.p99), added, ratio, str(own.count))
    table.notes += ways.missing
    if ROUTER in samples:
        against = samples[DAEMON].ratios(samples[ROUTER])
        met = verdict(statistics.median(against), 1.0)
        table.notes.append(f"target: no worse than the router; enginehouse / router = {show_ratio(against)}: {met}")
    return table


if __name__ == "__main__":
    main()
