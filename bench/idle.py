"""What the daemon takes when nobody asks it anything: memory, CPU, and its start with 0 and with 1,000 models.

The baseline is an aiohttp server on uvloop with no routes: what the daemon's libraries take by themselves. Starts are
made in turn; the idle processes are watched side by side over the same time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.support.daemon import Daemon, config, running_daemon
from bench.support.engines import ask, canned_build
from bench.support.http import Load, post
from bench.support.machine import cpu_seconds, resident_bytes
from bench.support.others import bare_proxy
from bench.support.report import Progress, Table, mebibytes, options, run
from bench.support.sides import CANNED
from bench.support.stats import Samples, show_ratio, verdict
from tests.fakes.tiny_gguf import write_gguf

_MODELS = 1000
_BARE = "bare aiohttp server"
_START_TARGETS = {0: 0.8, _MODELS: 1.0}
_MEMORY_TARGET = 80 * 2**20
# A tenth of a percent of one CPU: what tools that show CPU round to 0.
_CPU_TARGET = 0.001
_SETTLE_SECONDS = 2.0
# Seconds for the starts: a busy machine gives fewer.
_BUDGET = {False: 30.0, True: 4.0}


@dataclass(frozen=True, slots=True)
class _Idle:
    """A process that is left alone."""

    name: str
    pid: int
    memory: int


def main() -> None:
    """The command."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, help="of idleness (default 60, quick 5)")
    parser.add_argument("--rounds", type=int, help="starts of each kind (default 6, quick 1)")
    run("idle", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """A table of starts, and one of idleness."""
    say = Progress()
    rounds = chosen.rounds or (1 if chosen.quick else 6)
    seconds = chosen.seconds or (5.0 if chosen.quick else 60.0)
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        folder = Path(name)
        documents = {0: config({}, canned_build(folder).as_config()), _MODELS: _many(folder)}
        starts = _table_of_starts(_start_all(folder, documents, rounds, _BUDGET[chosen.quick]))
        say(f"idle for {seconds:g} s")
        return [starts, _idle(folder, documents[_MODELS], seconds)]


def _many(folder: Path) -> dict[str, Any]:
    """A config with a thousand models, each a file of its own."""
    models: dict[str, Any] = {}
    for number in range(_MODELS):
        path = write_gguf(folder / "models" / f"model-{number:04d}.gguf")
        models[f"model-{number:04d}"] = {"file": str(path), "aliases": [f"alias-{number:04d}"]}
    models[CANNED] = {"file": str(write_gguf(folder / "canned.gguf")), "launch": {"slots": 4, "ctx_size": 64}}
    return config(models, canned_build(folder).as_config())


@dataclass(slots=True)
class _Starts:
    """Seconds, one value a round: until listening, and until builds and models are known."""

    listening: Samples
    known: Samples


def _start_all(folder: Path, documents: dict[int, dict[str, Any]], rounds: int, budget: float) -> dict[str, _Starts]:
    def bare() -> tuple[float, float | None]:
        with bare_proxy() as server:
            return _seconds(server.seconds_to_listen), None

    def daemon(count: int, document: dict[str, Any]) -> tuple[float, float | None]:
        home = folder / f"home-{count}"
        home.mkdir(exist_ok=True)
        began = time.perf_counter()
        with running_daemon(home, document) as started:
            started.wait_until_known()
            return _seconds(started.seconds_to_listen), time.perf_counter() - began

    kinds: dict[str, Callable[[], tuple[float, float | None]]] = {_BARE: bare}
    for count, document in documents.items():
        kinds[_named(count)] = lambda count=count, document=document: daemon(count, document)  # type: ignore[misc]
    starts = {name: _Starts(Samples(), Samples()) for name in kinds}
    say = Progress()
    order = list(kinds)
    end = time.monotonic() + budget
    for number in range(rounds + 1):
        for name in order:
            say(f"start {number} of {rounds}: {name}")
            listening, known = kinds[name]()
            if number:  # the first of each kind compiles, and reads every model's header
                starts[name].listening.add([listening])
                starts[name].known.add([known] if known is not None else [])
        order.reverse()
        if number and time.monotonic() > end:
            break
    return starts


def _named(count: int) -> str:
    return f"enginehouse, {count:,} models" if count else "enginehouse, no models"


def _seconds(value: float | None) -> float:
    return float("nan") if value is None else value


def _table_of_starts(starts: dict[str, _Starts]) -> Table:
    columns = ["process", "listens after, median", "99 %", "ratio (range over rounds)", "models known after", "starts"]
    table = Table("Start: from exec to listening", columns)
    baseline = starts[_BARE].listening
    for name, own in starts.items():
        listening = own.listening
        ratio = "1 (baseline)" if name == _BARE else show_ratio(listening.ratios(baseline))
        known = f"{own.known.median:.2f} s" if own.known.count else "-"
        table.row(name, f"{listening.median:.2f} s", f"{listening.p99:.2f} s", ratio, known, str(listening.count))
    for count, limit in _START_TARGETS.items():
        median = starts[_named(count)].listening.median
        table.notes.append(f"target: {_named(count)} listens after at most {limit} s: {verdict(median, limit)}")
    table.notes.append("models known after: from the spawn until /readyz is well; with files seen before, unchanged")
    return table


def _idle(folder: Path, document: dict[str, Any], seconds: float) -> Table:
    with ExitStack() as stack:
        bare = stack.enter_context(bare_proxy())
        small = config({CANNED: document["models"][CANNED]}, canned_build(folder).as_config())
        fresh = stack.enter_context(_known(folder / "fresh", small))
        used = stack.enter_context(_known(folder / "used", small))
        many = stack.enter_context(_known(folder / "home-many", document))
        _one_chat(used)
        time.sleep(_SETTLE_SECONDS)
        idle = [
            _Idle(_BARE, bare.pid, resident_bytes(bare.pid)),
            _Idle("enginehouse, started", fresh.pid, resident_bytes(fresh.pid)),
            _Idle("enginehouse, after one chat, its engine ready", used.pid, resident_bytes(used.pid)),
            _Idle(f"enginehouse, started with {_MODELS:,} models", many.pid, resident_bytes(many.pid)),
        ]
        before = [cpu_seconds(process.pid) for process in idle]
        time.sleep(seconds)
        spent = [cpu_seconds(process.pid) - start for process, start in zip(idle, before, strict=True)]
    return _table_of_idleness(idle, spent, seconds)


def _table_of_idleness(idle: list[_Idle], spent: list[float], seconds: float) -> Table:
    columns = ["process", "RSS", "ratio", f"CPU in {seconds:g} s", "share of one CPU", "ratio"]
    table = Table(f"Idle for {seconds:g} s", columns)
    for process, cpu in zip(idle, spent, strict=True):
        ratios = ("1 (baseline)", "1 (baseline)")
        if process is not idle[0]:
            by_cpu = f"{cpu / spent[0]:.1f}" if spent[0] else "-"
            ratios = (f"{process.memory / idle[0].memory:.2f}", by_cpu)
        share = f"{cpu / seconds:.3%}"
        table.row(process.name, mebibytes(process.memory), ratios[0], f"{cpu * 1000:.1f} ms", share, ratios[1])
    for process, cpu in list(zip(idle, spent, strict=True))[1:3]:
        memory = verdict(process.memory, _MEMORY_TARGET)
        table.notes.append(
            f"target: {process.name}: RSS at most {mebibytes(_MEMORY_TARGET)}: {memory}; "
            f"CPU at most {_CPU_TARGET:.1%} of one: {verdict(cpu / seconds, _CPU_TARGET)}"
        )
    worst = statistics.mean(cpu / seconds for cpu in spent[1:])
    table.notes.append(f"mean share of the three daemons: {worst:.3%}; one run, as all are watched over the same time")
    return table


@contextmanager
def _known(folder: Path, document: dict[str, Any]) -> Iterator[Daemon]:
    folder.mkdir(exist_ok=True)
    with running_daemon(folder, document) as daemon:
        daemon.wait_until_known()
        yield daemon


def _one_chat(daemon: Daemon) -> None:
    with Load(post(daemon.address, ask(CANNED))) as load:
        load.run(requests=1)


if __name__ == "__main__":
    main()
