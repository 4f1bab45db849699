"""Time of one admission decision: a thousand requests waiting, a hundred models; no clock, no loop, no engine.

Each picture of the world is decided on many times in turn with the others; the figures are CPU seconds of one process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.support.report import Table, milliseconds, options, run
from bench.support.stats import Samples, verdict
from supervisor.broker.admission import ModelView, Phase, Prospect, World, admit
from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import Claim, Entry, Ledger, Pool
from supervisor.broker.tickets import Ticket

_NOW = 10_000.0
_TARGET = 0.001
_MODELS, _WAITING, _CALLERS, _RESIDENT = 100, 1000, 20, 12


def world(*, resident: int, idle: bool, waiting: int = _WAITING, models: int = _MODELS) -> World:
    """``resident`` models run and hold all of a pool; ``waiting`` requests of 20 callers are spread over all models.

    Args:
        resident: how many models are READY, each with every slot taken.
        idle: every second one of them is idle instead, and nobody waits for it.
        waiting: requests.
        models: models in all.
    """
    names = [f"model-{n}" for n in range(models)]
    views: dict[str, ModelView] = {}
    entries: dict[str, Entry] = {}
    queues: dict[str, list[Ticket]] = {}
    for number, name in enumerate(names):
        claims = {"gpu-0": Claim(80, 8, mapped={f"/models/{name}": 100}), "host": Claim(10)}
        runs, rests = number < resident, idle and number % 2 == 0
        entry = Entry(f"{name}-1", name, claims)
        holder = Resident(f"{name}-1", name, _NOW - 60.0 if rests else None, demand=0.01 * number, reload=5.0)
        views[name] = ModelView(
            name,
            f"{name}-1",
            Phase.READY if runs else Phase.RESTING,
            resident=holder if runs else None,
            prospect=Prospect(claims, serial_pools=frozenset({"gpu-0"})),
        )
        queues[name] = []
        if runs:
            entries[entry.instance] = entry
    asked = [name for n, name in enumerate(names) if not (idle and n < resident and n % 2 == 0)]
    for number in range(waiting):
        name = asked[number % len(asked)]
        since = _NOW - 5.0 + number / waiting
        queues[name].append(Ticket(number, f"r{number}", f"c{number % _CALLERS}", name, "interactive", since))
    pools = {"gpu-0": Pool(188 * resident), "host": Pool(10_000)}
    return World(_NOW, queues, views, Ledger(pools, entries))


def worlds() -> dict[str, World]:
    """Pictures by what they show."""
    full = world(resident=_RESIDENT, idle=False)
    return {
        "all slots taken, all models wanted": full,
        "idle engines to choose among": world(resident=_RESIDENT, idle=True),
        "40 engines run, 20 of them idle": world(resident=40, idle=True),
        "engines in use are to be drained": replace(full, now=_NOW + 60.0),
        "nobody else waits": world(resident=_RESIDENT, idle=False, waiting=1),
    }


def fresh(picture: World) -> World:
    """The same, with a ledger that nothing was worked out of yet, as after every change."""
    return replace(picture, ledger=replace(picture.ledger))


def measure(chosen: argparse.Namespace) -> Sequence[Table]:
    """Decide, in turn."""
    rounds, times = (5, 4) if chosen.quick else (15, 20)
    pictures = worlds()
    samples = {name: Samples() for name in pictures}
    for _ in range(rounds):
        for name, picture in pictures.items():
            taken = []
            for _ in range(times):
                one = fresh(picture)
                began = time.process_time()
                admit(one)
                taken.append(time.process_time() - began)
            samples[name].add(taken)
    table = Table(
        f"One decision: {_WAITING} waiting, {_MODELS} models, {_CALLERS} callers",
        ("the world", "median", "99 %", "decisions", f"target {milliseconds(_TARGET)}"),
    )
    for name, found in samples.items():
        figures = (milliseconds(found.median), milliseconds(found.p99), str(found.count))
        table.row(name, *figures, verdict(found.median, _TARGET))
    return [table]


if __name__ == "__main__":
    run("decisions", options(__doc__), measure)
