"""The broker over simulated engines in virtual time: what becomes of requests, and whether its invariants hold.

The first table runs each trace until so many events have happened, and looks at every invariant after each of them. The
second compares the broker with first come, first served and the least recently used engine going: the same callers, the
same engines, the same seeds. Times are simulated; the machine does not matter.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from bench.simulation.run import Result, compare, simulate
from bench.simulation.traces import ALTERNATING, MIXED, TRACES, Trace
from bench.support.report import Progress, Table, options, run


def _traces(events: int, seeds: int) -> Table:
    table = Table(
        f"Invariants looked at after every event; {events} events by {seeds} seeds each",
        (
            "trace",
            "simulated",
            "completed",
            "denied",
            "left",
            "worst wait",
            "swaps a minute",
            "Jain",
            "looks",
            "broken",
        ),
    )
    for trace in (*TRACES, MIXED):
        Progress()(trace.name)
        found = [simulate(trace, seed, events) for seed in range(seeds)]
        fair = [one.fairness for one in found if one.fairness is not None]
        table.row(
            trace.name,
            f"{sum(one.seconds for one in found) / 3600:.1f} h",
            str(sum(one.outcomes.completed for one in found)),
            str(sum(one.outcomes.denied.total() for one in found)),
            str(sum(one.outcomes.cancelled for one in found)),
            f"{max(one.outcomes.worst_wait for one in found):.0f} s",
            f"{statistics.fmean(60 * one.swaps / one.seconds for one in found):.1f}",
            f"{min(fair):.3f}" if fair else "-",
            str(sum(one.checks for one in found)),
            "none",
        )
    table.notes.append("a broken invariant ends the command; denied: the queue is full, or the wait or the memory over")
    return table


def _row(table: Table, name: str, found: Sequence[Result]) -> None:
    table.row(
        name,
        f"{statistics.median(one.per_minute for one in found):.1f}",
        f"{max(one.outcomes.worst_wait for one in found):.0f} s",
        f"{statistics.median(statistics.fmean(one.outcomes.waits) for one in found):.1f} s",
        f"{statistics.median(60 * one.swaps / one.seconds for one in found):.2f}",
    )


def _mixed(trace: Trace, seconds: float, seeds: int) -> Table:
    table = Table(
        f"{trace.name}: {seconds / 60:.0f} simulated minutes, {seeds} seeds",
        ("policy", "completed a minute", "worst wait", "mean wait", "swaps a minute"),
    )
    for name, ours in (("the broker", True), ("first come, first served; least recently used goes", False)):
        Progress()(f"{trace.name}: {name}")
        _row(table, name, [compare(trace, seed, seconds, ours=ours) for seed in range(seeds)])
    return table


def measure(chosen: argparse.Namespace) -> Sequence[Table]:
    """Run all."""
    events, seeds, seconds = (1500, 1, 1200.0) if chosen.quick else (chosen.events, 3, 7200.0)
    return [_traces(events, seeds), _mixed(MIXED, seconds, seeds), _mixed(ALTERNATING, seconds, seeds)]


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--events", type=int, default=6000, help="of each trace and seed")
    run("simulate", parser, measure)
