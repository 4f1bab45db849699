"""The daemon's own CPU for one proxied request, and where it goes.

First the CPU time of the daemon per request is measured from outside, in turn with a bare aiohttp proxy: what is above
that is ours. Then, with `--profile`, the same requests are made to a daemon whose stack is sampled by CPU time; the
shares of the samples are those of the figure that was measured before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.support.errors import BenchError
from bench.support.http import Load
from bench.support.machine import cpu_seconds
from bench.support.report import Progress, Table, options, run
from bench.support.sides import BARE, CANNED, DAEMON, Ways, open_house
from bench.support.stats import Samples, show_ratio, verdict

_TARGET = 100e-6
_SHOWN = 60
_LEAST_SHARE = 0.004
# What is in nearly every sample is the way into the event loop.
_ENTRY_SHARE = 0.98
_LONGEST = 300.0
_BLOCK = 200


@dataclass(frozen=True, slots=True)
class _Cost:
    """One function's samples: on top of the stack, and anywhere in it."""

    where: str
    room: str
    own: int
    inside: int


@dataclass(frozen=True, slots=True)
class _Profile:
    """Samples of the daemon while it served, and the CPU seconds that one request takes without the sampling."""

    samples: int
    costs: list[_Cost]
    by_request: float

    def microseconds(self, samples: int) -> str:
        return f"{samples / self.samples * self.by_request * 1e6:.0f} µs"


def main() -> None:
    """The command."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="blocks of 200 requests on each way (default 20, quick 3)")
    parser.add_argument("--profile", action="store_true", help="also say where the time goes")
    run("own_cpu", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """CPU by way and form; with a profile, costs by room and by function for each form."""
    say = Progress()
    rounds = chosen.rounds or (3 if chosen.quick else 20)
    tables = []
    found: dict[bool, dict[str, Samples]] = {}
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name, open_house(Path(name), with_engine=False) as house:
        for stream in (False, True):
            say(f"CPU per request, {_form(stream)}")
            found[stream] = _alternate(house.ways(CANNED, stream=stream), rounds)
            tables.append(_table(found[stream], stream=stream))
    for stream in (False, True) if chosen.profile else ():
        say(f"profile, {_form(stream)}")
        profile = _profile(rounds * _BLOCK, found[stream][DAEMON].median, stream=stream)
        tables += [_by_room(profile, stream=stream), _by_function(profile, stream=stream)]
    return tables


def _form(stream: bool) -> str:
    return "streamed" if stream else "whole answer"


def _alternate(ways: Ways, rounds: int) -> dict[str, Samples]:
    found = {BARE: Samples(), DAEMON: Samples()}
    order: Sequence[str] = list(found)
    for _ in range(rounds):
        for name in order:
            with Load(ways.targets[name]) as load:
                before = cpu_seconds(ways.pids[name])
                load.run(requests=_BLOCK)
                found[name].add([(cpu_seconds(ways.pids[name]) - before) / _BLOCK])
        order = order[::-1]
    return found


def _table(found: dict[str, Samples], *, stream: bool) -> Table:
    columns = ["process", "CPU per request, median", "most", "ratio (range over rounds)", "requests"]
    table = Table(f"CPU of the process in between, canned engine, {_form(stream)}", columns)
    for name, own in found.items():
        ratio = "1 (baseline)" if name == BARE else show_ratio(own.ratios(found[BARE]))
        most = max(own.values)
        requests = f"{own.count * _BLOCK:,}"
        table.row(name, f"{own.median * 1e6:,.0f} µs", f"{most * 1e6:,.0f} µs", ratio, requests)
    pairs = zip(found[DAEMON].values, found[BARE].values, strict=True)
    above = statistics.median(daemon - bare for daemon, bare in pairs)
    table.notes.append(
        f"target: own CPU, above the bare proxy's, at most {_TARGET * 1e6:.0f} µs: {above * 1e6:,.0f} µs, "
        f"{verdict(above, _TARGET)}"
    )
    return table


def _profile(requests: int, by_request: float, *, stream: bool) -> _Profile:
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        path = Path(name) / "profile.json"
        with open_house(Path(name), with_engine=False, profile=path) as house:
            ways = house.ways(CANNED, stream=stream)
            os.kill(house.daemon.pid, signal.SIGUSR1)
            with Load(ways.targets[DAEMON]) as load:
                load.run(requests=requests, seconds=_LONGEST)
        document = json.loads(path.read_text(encoding="utf-8"))
    costs = [
        _Cost(_short(row["file"], row["line"], row["function"]), _room(row["file"]), row["own"], row["inside"])
        for row in document["functions"]
    ]
    if not document["samples"]:
        raise BenchError("too few requests for a profile: raise --rounds")
    return _Profile(document["samples"], costs, by_request)


def _room(file: str) -> str:
    path = file.replace("\\", "/")
    if "/site-packages/" in path:
        return path.partition("/site-packages/")[2].partition("/")[0]
    for package in ("supervisor", "engines"):
        if f"/{package}/" in path:
            parts = path.rpartition(f"/{package}/")[2].split("/")
            return f"{package}/{parts[0]}" if len(parts) > 1 else f"{package}, top"
    if path.startswith("<") or "/" not in path:
        return "generated and frozen code"
    parent = Path(path).parent.name
    return f"stdlib {Path(path).stem if parent.startswith('python') else parent}"


def _short(file: str, line: int, function: str) -> str:
    path = file.replace("\\", "/")
    for mark in ("/site-packages/", "/supervisor/", "/engines/", "/lib/python"):
        if mark in path:
            keep = mark.strip("/") + "/" if mark in {"/supervisor/", "/engines/"} else ""
            path = keep + path.rpartition(mark)[2]
            break
    return f"{path}:{line} {function}"


def _by_room(profile: _Profile, *, stream: bool) -> Table:
    rooms: Counter[str] = Counter()
    for cost in profile.costs:
        rooms[cost.room] += cost.own
    table = Table(f"Where it goes, by room, {_form(stream)}", ["room", "own CPU per request", "share"])
    for room, own in rooms.most_common():
        share = own / profile.samples
        if share > _LEAST_SHARE:
            table.row(room, profile.microseconds(own), f"{share:.1%}")
    table.notes.append(f"{profile.samples} samples by CPU time; C code counts for the Python function that called it")
    return table


def _by_function(profile: _Profile, *, stream: bool) -> Table:
    columns = ["function", "with callees, per request", "own, per request"]
    table = Table(f"Where it goes, by function, {_form(stream)}", columns)
    inside = [cost for cost in profile.costs if cost.inside < _ENTRY_SHARE * profile.samples]
    for cost in sorted(inside, key=lambda cost: (-cost.inside, cost.where))[:_SHOWN]:
        table.row(cost.where, profile.microseconds(cost.inside), profile.microseconds(cost.own))
    return table


if __name__ == "__main__":
    main()
