"""What happens in each simulation: models, callers, and the outside. Seeded, so that a run can be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulation.models import ModelSpec
from supervisor.host.pools import HOST_POOL

GPU = "gpu-0"


@dataclass(frozen=True, slots=True)
class CallerSpec:
    """Somebody who asks, waits for the answer, pauses, and asks again. Times are means, in seconds.

    Attributes:
        models: asked for in turn.
        at_once: requests that it has under way.
        patience: it leaves a request after about this long, waiting or answered; None: it stays.
    """

    name: str
    models: tuple[str, ...]
    at_once: int = 1
    service: float = 4.0
    pause: float = 1.0
    patience: float | None = None
    lane: str = "interactive"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A simulation.

    Attributes:
        budget: bytes of the pool.
        outside: what others hold of it, as (from this second of each ten minutes on, bytes).
        equals: callers who should be served alike.
    """

    name: str
    models: tuple[ModelSpec, ...]
    callers: tuple[CallerSpec, ...]
    budget: int = 100
    pool: str = HOST_POOL
    outside: tuple[tuple[float, int], ...] = ()
    per_caller: int = 16
    total: int = 64
    max_wait: float = 120.0
    equals: tuple[str, ...] = ()


_BAD = {"lies": 3, "leaks": 1, "crashes": 0.02, "fails": 0.1, "hangs": 0.02}
_SMALL = tuple(ModelSpec(f"small{n}", 12, load=3.0, **_BAD) for n in range(6))  # type: ignore[arg-type]

ALTERNATING = Trace(
    "two alternating callers",
    (ModelSpec("a", 60), ModelSpec("b", 60)),
    (CallerSpec("anne", ("a",), at_once=2), CallerSpec("bert", ("b",), at_once=2)),
    equals=("anne", "bert"),
)
BURST = Trace(
    "burst over the limit",
    (ModelSpec("a", 40, slots=4, fails=0.1, crashes=0.01), ModelSpec("b", 40, fails=0.1)),
    tuple(CallerSpec(f"c{n}", ("a", "b"), at_once=20, pause=30.0, patience=60.0) for n in range(5)),
)
GREEDY = Trace(
    "one greedy caller",
    (ModelSpec("a", 60, slots=2),),
    (
        CallerSpec("greedy", ("a",), at_once=14, pause=0.1),
        *(CallerSpec(f"modest{n}", ("a",), at_once=2, pause=0.1) for n in range(3)),
    ),
    equals=("greedy", "modest0", "modest1", "modest2"),
)
MANY_SMALL = Trace(
    "many small and one big",
    (*_SMALL, ModelSpec("big", 80, slots=1, load=20.0, lags=1.0, fails=0.05)),
    (
        *(CallerSpec(f"c{n}", (f"small{n}", f"small{(n + 1) % 6}"), pause=6.0, patience=90.0) for n in range(6)),
        CallerSpec("painter", ("big",), service=20.0, pause=60.0),
    ),
    pool=GPU,
)
PRESSURE = Trace(
    "pressure from outside",
    (
        ModelSpec("a", 40, leaks=1, crashes=0.02, lags=2.0),
        ModelSpec("b", 30, lies=5, hangs=0.05, lags=2.0),
        ModelSpec("c", 20, fails=0.2),
        ModelSpec("pin", 10, pinned=True),
    ),
    tuple(CallerSpec(f"c{n}", ("a", "b", "c", "pin"), at_once=2, pause=3.0, patience=40.0) for n in range(4)),
    outside=((60.0, 30), (120.0, 75), (200.0, 0), (300.0, 95), (330.0, 50), (420.0, 0)),
    pool=GPU,
)
MIXED = Trace(
    "3 models, 4 callers, room for 2",
    (ModelSpec("chat", 45, slots=4, load=8.0), ModelSpec("code", 45, slots=2, load=10.0), ModelSpec("vision", 45)),
    (
        CallerSpec("anne", ("chat", "chat", "code"), at_once=2),
        CallerSpec("bert", ("chat", "code", "code"), at_once=2),
        CallerSpec("carl", ("chat", "chat", "chat", "vision"), at_once=2),
        CallerSpec("dora", ("code", "chat", "chat"), at_once=2),
    ),
)
TRACES = (ALTERNATING, BURST, GREEDY, MANY_SMALL, PRESSURE)
