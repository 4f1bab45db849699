"""256 streams at once through the daemon: chunks a second, CPU, delay, order, and memory.

The engine is the canned one. Each chunk carries its stream, its number and the moment of its making. `paced` streams
get a chunk each 100 ms, once all of them are open; `flat out` they get as many as the daemon takes. Ways are
measured in turn; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.support.daemon import Engine
from bench.support.engines import ask
from bench.support.http import Address, Target, post
from bench.support.machine import cpu_seconds, resident_bytes
from bench.support.many_streams import Read, read_streams
from bench.support.others import bare_proxy
from bench.support.report import Progress, Table, mebibytes, milliseconds, options, run
from bench.support.sides import BARE, DAEMON, MOST_STREAMS, STRAIGHT, WIDE, open_house
from bench.support.stats import Samples, percentile, show_ratio, verdict

_INTERVAL = 0.1
_FLAT_CHUNKS = {False: 400, True: 100}
# Seconds until all streams are open, so that opening them does not count.
_OPENING = 0.8
_WARM_UP = 100
_ENOUGH_ROUNDS = 3
# Growth from the first round to the last that is a leak rather than an allocator's habit.
_FLAT_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Way:
    """Where requests go, and the process in between."""

    address: Address
    headers: Mapping[str, str]
    pid: int | None


@dataclass(slots=True)
class _Runs:
    """What came by one way, round by round; CPU in seconds, memory after each round in bytes."""

    reads: list[Read] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def rates(self) -> Samples:
        return Samples([read.chunks / read.seconds] for read in self.reads)

    def delays(self) -> Samples:
        return Samples(read.delays for read in self.reads)

    def cpu_by_thousand(self) -> list[float]:
        return [cpu / read.chunks * 1000 for cpu, read in zip(self.cpu, self.reads, strict=False)]

    def faults(self) -> str:
        lost = sum(read.lost for read in self.reads)
        reordered = sum(read.reordered for read in self.reads)
        unfinished = sum(read.unfinished for read in self.reads)
        return f"{lost} / {reordered} / {unfinished}"


def main() -> None:
    """The command."""
    parser = options(__doc__)
    parser.add_argument("--streams", type=int, default=MOST_STREAMS, help=f"at once, at most {MOST_STREAMS}")
    parser.add_argument("--rounds", type=int, help="turns of each way (default 3, quick 1)")
    parser.add_argument("--seconds", type=float, help="of a paced turn (default 5, quick 1)")
    run("streams", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """A table for each pace, and one for memory."""
    say = Progress()
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    seconds = chosen.seconds or (1 if chosen.quick else 5)
    plans = {"paced": (_INTERVAL, round(seconds / _INTERVAL)), "flat out": (0.0, _FLAT_CHUNKS[chosen.quick])}
    tables: list[Table] = []
    memory: dict[str, list[int]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="eh-bench-") as name,
        open_house(Path(name), with_engine=False) as house,
    ):
        engine = house.daemon.load(WIDE)
        with bare_proxy(engine) as bare:
            ways = _ways(engine, bare.address, bare.pid, house.daemon.address, house.daemon.pid)
            _warm_up(ways, chosen.streams)
            before = resident_bytes(house.daemon.pid)
            for pace, (interval, chunks) in plans.items():
                say(f"{chosen.streams} streams, {pace}")
                runs = _alternate(ways, chosen.streams, rounds, interval, chunks)
                tables.append(_table(pace, chosen.streams, runs))
                memory[pace] = runs[DAEMON].memory
    return [*tables, _memory_table(before, memory)]


def _ways(engine: Engine, bare: Address, bare_pid: int, daemon: Address, daemon_pid: int) -> dict[str, _Way]:
    return {
        STRAIGHT: _Way(engine.address, engine.headers, None),
        BARE: _Way(bare, {}, bare_pid),
        DAEMON: _Way(daemon, {}, daemon_pid),
    }


def _targets(way: _Way, streams: int, interval: float, chunks: int, begin: float) -> list[Target]:
    pace = {"chunks": chunks, "interval": interval, "begin": begin}
    wishes = ({"stream": number, **pace} for number in range(streams))
    bodies = (ask(WIDE, stream=True, tokens=chunks, bench=wish) for wish in wishes)
    return [post(way.address, body, headers=way.headers, closes=True) for body in bodies]


def _read(way: _Way, streams: int, interval: float, chunks: int) -> tuple[Read, float]:
    """What came, and the CPU seconds of the process in between from the first chunk on."""
    begin = time.monotonic() + _OPENING
    before: list[float] = []

    def at_begin() -> None:
        before.append(cpu_seconds(way.pid) if way.pid else 0.0)

    read = read_streams(_targets(way, streams, interval, chunks, begin), chunks, begin, at_begin)
    return read, cpu_seconds(way.pid) - before[0] if way.pid else 0.0


def _warm_up(ways: Mapping[str, _Way], streams: int) -> None:
    for way in ways.values():
        _read(way, streams, 0.0, _WARM_UP)


def _alternate(ways: Mapping[str, _Way], streams: int, rounds: int, interval: float, chunks: int) -> dict[str, _Runs]:
    runs = {name: _Runs() for name in ways}
    order: Sequence[str] = list(ways)
    for _ in range(rounds):
        for name in order:
            way, own = ways[name], runs[name]
            read, cpu = _read(way, streams, interval, chunks)
            own.reads.append(read)
            if way.pid:
                own.cpu.append(cpu)
                own.memory.append(resident_bytes(way.pid))
        order = order[::-1]
    return runs


def _table(pace: str, streams: int, runs: dict[str, _Runs]) -> Table:
    columns = ["way", "chunks/s", "ratio (range)", "delay, median", "delay, 99 %", "CPU s per 1,000 chunks"]
    table = Table(f"{streams} streams at once, {pace}", [*columns, "lost / reordered / unfinished", "chunks, rounds"])
    straight = runs[STRAIGHT]
    for name, own in runs.items():
        delays = own.delays().values
        table.row(
            name,
            f"{own.rates().median:,.0f}",
            "1 (baseline)" if own is straight else show_ratio(own.rates().ratios(straight.rates())),
            milliseconds(statistics.median(delays)),
            milliseconds(percentile(delays, 0.99)),
            f"{statistics.median(own.cpu_by_thousand()):.4f}" if own.cpu else "-",
            own.faults(),
            f"{sum(read.chunks for read in own.reads):,}, {len(own.reads)}",
        )
    busiest = max(read.busy for own in runs.values() for read in own.reads)
    table.notes.append(f"delay: from a chunk's making in the engine to its reading; reader at most {busiest:.0%} busy")
    faultless = verdict(sum(map(_faults, runs[DAEMON].reads)), 0)
    table.notes.append(f"target: no chunk lost or reordered, every stream ended properly: {faultless}")
    return table


def _faults(read: Read) -> int:
    return read.lost + read.reordered + read.unfinished


def _memory_table(before: int, after: Mapping[str, Sequence[int]]) -> Table:
    table = Table("The daemon's memory over these rounds (RSS)", ["when", "RSS", "ratio to before"])
    table.row("before, warmed up", mebibytes(before), "1 (baseline)")
    for pace, sizes in after.items():
        for number, size in enumerate(sizes, start=1):
            table.row(f"after {pace} round {number}", mebibytes(size), f"{size / before:.3f}")
    if all(len(sizes) >= _ENOUGH_ROUNDS for sizes in after.values()):
        grown = max(sizes[-1] - sizes[0] for sizes in after.values())
        met = verdict(grown, _FLAT_BYTES)
        table.notes.append(f"target: flat; from a pace's first to its last round at most {mebibytes(grown)}: {met}")
    else:
        table.notes.append(f"whether it is flat, {_ENOUGH_ROUNDS} rounds or more tell")
    return table


if __name__ == "__main__":
    main()
