"""Tokens a second of the planned number of threads against every other number, under real CPU quotas.

For each quota a control group is made, the plan is asked for inside it, and one engine for each number of threads is
started inside it with the planned flags but for that number. They are asked in turn, one at a time, so that each has
the whole quota. Needs root, or a delegated control group.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.support.by_hand import wait_until_healthy
from bench.support.daemon import ROOT, config, stop_process
from bench.support.engines import Build, add_engine_options, real_build, real_model
from bench.support.errors import BenchError
from bench.support.http import connect
from bench.support.report import Progress, Table, options, run
from tests.support.cgroups import Cgroup, NoCgroupError, made_cgroup
from tests.support.sockets import short_socket_folder

_MODEL = "real"
_QUOTAS = (0.5, 1.0, 1.5, 2.0)
_TARGET = 0.95
_MOST_TOKENS, _QUICK_TOKENS = 32, 8
# About 120 tokens.
_PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
# A quota is given anew every 100 ms: after this the next request finds a whole one.
_REST = 0.25
_LONGEST = 300.0
_GENERATION, _BATCH = "generation", "prompt"


@dataclass(slots=True)
class _Speeds:
    """Tokens a second of one number of threads, round by round."""

    generation: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    throttled: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Quota:
    """What one quota gave: by number of threads; ``planned`` for generation and batch."""

    cpus: float
    planned: dict[str, int]
    speeds: dict[int, _Speeds]


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="turns of each number of threads (default 5, quick 1)")
    parser.add_argument("--quotas", type=float, nargs="+", default=_QUOTAS, help="in CPUs (default 0.5 1 1.5 2)")
    parser.add_argument("--most", type=int, help="largest number of threads (default twice the CPUs)")
    parser.add_argument("--counts", type=int, nargs="+", help="these numbers of threads, the planned one among them")
    run("quota", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """One table."""
    say = Progress()
    cpus = len(os.sched_getaffinity(0))
    counts = chosen.counts or range(1, (chosen.most or 2 * cpus) + 1)
    rounds = chosen.rounds or (1 if chosen.quick else 5)
    tokens = _QUICK_TOKENS if chosen.quick else _MOST_TOKENS
    build, model = real_build(chosen.engine), real_model(chosen.model)
    found = []
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        try:
            for quota in chosen.quotas:
                say(f"{quota:g} CPUs")
                found.append(_measure_quota(Path(name), quota, counts, build, model, (rounds, tokens)))
        except NoCgroupError as error:
            return [Table("Tokens a second under a CPU quota", ["not measured"], [(str(error),)])]
    return [_table(found, cpus)]


def _measure_quota(
    folder: Path, cpus: float, counts: Sequence[int], build: Build, model: Path, effort: tuple[int, int]
) -> _Quota:
    rounds, tokens = effort
    with made_cgroup(cpus) as group, short_socket_folder() as sockets, ExitStack() as stack:
        plan = _plan(folder, group, build, model)
        planned = {_GENERATION: plan["threads"], _BATCH: plan["threads_batch"]}
        group.set_cpus(None)  # loads are not what is measured
        engines = {}
        for count in counts:
            engine = _engine(plan["argv"], count, build, group, sockets / f"{count}.sock")
            engines[count] = stack.enter_context(engine)
        group.set_cpus(cpus)
        group.go_first()  # what others take of the CPUs would be measured too
        speeds = {count: _Speeds() for count in counts}
        order = list(engines)
        for number in range(rounds + 1):
            for count in order:
                spare = _Speeds() if number == 0 else speeds[count]  # the first turn only warms up
                _ask_both(engines[count], tokens, spare, group)
            order.reverse()
        return _Quota(cpus, planned, speeds)


def _plan(folder: Path, group: Cgroup, build: Build, model: Path) -> dict[str, Any]:
    """The plan that the product makes inside the group."""
    launch = {"slots": 1, "ctx_size": 1024}
    document = config({_MODEL: {"file": str(model), "launch": launch}}, build.as_config())
    path = folder / "config.yaml"
    places = {"state_dir": str(folder / "state"), "data_dir": str(folder / "data")}
    # A plan makes nothing: the folder of conversations would come with the daemon, and is not measured.
    path.write_text(yaml.safe_dump({**places, **document, "cache": {"enabled": False}}), encoding="utf-8")
    argv = group.wrap([sys.executable, "-m", "supervisor", "plan", _MODEL, "--config", str(path), "--json"])
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"no plan: {done.stderr or done.stdout}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


@contextmanager
def _engine(planned: Sequence[str], threads: int, build: Build, group: Cgroup, address: Path) -> Iterator[Path]:
    argv = [*planned, "--host", str(address)]
    for flag in ("--threads", "--threads-batch"):
        argv[argv.index(flag) + 1] = str(threads)
    log = address.with_suffix(".log")
    env = {"PATH": os.environ["PATH"], **build.env}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            group.wrap(argv), env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        wait_until_healthy(process, address, time.perf_counter(), log)
        yield address
    finally:
        stop_process(process)


def _ask_both(address: Path, tokens: int, speeds: _Speeds, group: Cgroup) -> None:
    time.sleep(_REST)
    periods, throttled = group.periods()
    timings = _complete(address, {"prompt": "Once upon a time", "n_predict": tokens, "ignore_eos": True})
    after, throttled_after = group.periods()
    speeds.generation.append(timings["predicted_per_second"])
    speeds.throttled.append((throttled_after - throttled) / max(1, after - periods))
    time.sleep(_REST)
    speeds.prompt.append(_complete(address, {"prompt": _PROMPT, "n_predict": 1})["prompt_per_second"])


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = connect(self._path)
        self.sock.settimeout(_LONGEST)


def _complete(address: Path, body: Mapping[str, Any]) -> dict[str, float]:
    """The engine's own timings of a completion.

    Raises:
        BenchError: anything but 200.
    """
    connection = _Connection(address)
    try:
        data = json.dumps({**body, "cache_prompt": False, "temperature": 0})
        connection.request("POST", "/completion", data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"a completion was answered {answer.status}: {text[:300]!r}")
    timings: dict[str, float] = json.loads(text)["timings"]
    return timings


def _table(found: Sequence[_Quota], cpus: int) -> Table:
    columns = ["quota, threads", "generation", "of the best", "periods throttled", "prompt", "of the best", "turns"]
    table = Table(f"Tokens a second under a CPU quota, {cpus} CPUs", columns)
    worst = {_GENERATION: 1.0, _BATCH: 1.0}
    for quota in found:
        middle = {
            _GENERATION: {count: statistics.median(own.generation) for count, own in quota.speeds.items()},
            _BATCH: {count: statistics.median(own.prompt) for count, own in quota.speeds.items()},
        }
        for count, own in quota.speeds.items():
            cells = []
            planned = [kind for kind in (_GENERATION, _BATCH) if quota.planned[kind] == count]
            for kind in (_GENERATION, _BATCH):
                share = middle[kind][count] / max(middle[kind].values())
                if kind in planned:
                    worst[kind] = min(worst[kind], share)
                cells += [f"{middle[kind][count]:.1f}", f"{share:.2f}"]
            note = f" (planned for {' and '.join(planned)})" if planned else ""
            cells.insert(2, f"{statistics.median(own.throttled):.0%}")
            table.row(f"{quota.cpus:g}, {count}{note}", *cells, str(len(own.generation)))
    for kind, share in worst.items():
        met = "met" if share >= _TARGET else "MISSED"
        table.notes.append(f"target: {kind} with the planned number at least {_TARGET} of the best: {share:.2f}, {met}")
    table.notes.append("medians of the engine's own timings; asked in turn, one engine at a time")
    return table


if __name__ == "__main__":
    main()
