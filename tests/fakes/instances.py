"""Stand-ins for the fleet, so that the broker can be driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import anyio.lowlevel

from engines.contract import Capability, Choice, EngineAdapter, EngineKind, LaunchPlan, MemoryEstimate
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.broker.ledger import Ledger
from supervisor.broker.ports import Options
from supervisor.errors import SupervisorError
from supervisor.host.pools import PoolRoom
from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry


def model_entry(model_id: str = "m") -> ModelEntry:
    """A model that chats."""
    return ModelEntry(
        id=model_id,
        engine=EngineKind.LLAMA_CPP,
        files=(Path("/models/m.gguf"),),
        aliases=(),
        serves=frozenset({Capability.CHAT}),
        settings=LlamaCppSettings(),
        defaults=LlamaCppSettings(),
        metadata=None,
        broken=None,
        build=None,
        keep_alive=None,
        pinned=False,
        preload=False,
        allow_paging=False,
    )


def launch_plan() -> LaunchPlan:
    """A plan without content."""
    return LaunchPlan(
        model_id="demo",
        engine=EngineKind.LLAMA_CPP,
        build="b",
        fingerprint="f",
        executable=Path("/x"),
        argv=(),
        env={},
        threads=1,
        threads_batch=1,
        n_gpu_layers=None,
        ctx_size=1,
        slots=1,
        cache_type=None,
        memory={},
        fits=True,
        rationale=(),
    )


class FakeInstance:
    """An instance whose state a test sets by hand."""

    def __init__(self, model_id: str, changed: Callable[[FakeInstance], None], slots: int = 2) -> None:
        self.id = f"{model_id}-1"
        self.model_id = model_id
        self.is_ready = False
        self.has_failed = False
        self.can_start = True
        self.draining = False
        self.is_starting = False
        self.backing_off = False
        self.load_seconds = 1.0
        self.saving = 0.0
        self.slots = slots
        self.failure: SupervisorError | None = None
        self.wanted = 0
        self.stopped: list[str] = []
        self.entry = model_entry(model_id)
        self._changed = changed

    @property
    def at_rest(self) -> bool:
        """Nothing runs: wished for or not, it is a test that makes it ready."""
        return not self.is_ready and not self.is_starting

    @property
    def is_wanted(self) -> bool:
        """Whether it was ever asked for."""
        return self.wanted > 0

    @property
    def accepting(self) -> bool:
        """Ready and not draining."""
        return self.is_ready and not self.draining

    def want(self) -> bool:
        """Counted; the first one is the starter."""
        self.wanted += 1
        return self.wanted == 1

    def use(self, entry: ModelEntry) -> None:
        """Remembered."""
        self.entry = entry

    def drain(self) -> None:
        """Takes nobody until it becomes something else."""
        self.draining = True

    def forgive(self) -> None:
        """Nothing is held against it."""
        self.can_start = True

    def request_stop(self, reason: str) -> None:
        """Told to stop; a test says when it has."""
        self.stopped.append(reason)

    def retry_after(self) -> float:
        """A fixed time."""
        return 7.0

    def current_launch(self) -> Launch:
        """No process stands behind it."""
        return cast("Launch", SimpleNamespace(rebuild=0.0, saving=0.0))

    def load_overlap(self, since: float) -> float:
        """Never any."""
        return 0.0

    def becomes(
        self, *, ready: bool, failure: SupervisorError | None = None, can_start: bool = True, failed: bool = False
    ) -> None:
        """Change the state, as ``Instance`` does: observers hear of it in the same step."""
        self.is_ready, self.failure, self.can_start = ready, failure, can_start
        self.has_failed = failed
        self._changed(self)


class FakePlanner:
    """Plans of so many bytes of the host pool for each model, in a host of ``budget`` bytes.

    Attributes:
        sizes: anonymous bytes by model; None: not known.
        smaller: bytes of the plan beside others, for models that have one.
        error: raised instead.
        asked: models, in the order of the questions; ``entries`` as they were asked about.
        gate: a question waits for it.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.sizes: dict[str, int | None] = {}
        self.smaller: dict[str, int] = {}
        self.error: SupervisorError | None = None
        self.asked: list[str] = []
        self.entries: list[ModelEntry] = []
        self.gate: anyio.Event | None = None
        self.announced: list[LaunchPlan] = []

    async def options(self, entry: ModelEntry, _ledger: Ledger) -> Options:
        """The plans, after one turn of the loop."""
        await anyio.lowlevel.checkpoint()
        self.asked.append(entry.id)
        self.entries.append(entry)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        smaller = self.smaller.get(entry.id)
        return Options(
            best=self.plan(entry, self.sizes.get(entry.id, 0)),
            beside=None if smaller is None else self.plan(entry, smaller),
            rooms=await self.rooms(entry),
        )

    async def rooms(self, _entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """The host's."""
        return (PoolRoom("host", self.budget, self.budget, "by the test"),)

    def announce(self, _entry: ModelEntry, plan: LaunchPlan) -> None:
        """Remembered."""
        self.announced.append(plan)

    def plan(self, entry: ModelEntry, size: int | None) -> LaunchPlan:
        """A plan of that size."""
        fits = self.budget is None or size is None or size <= self.budget
        memory = {"host": MemoryEstimate(other=size)}
        why = (Choice("memory", size, f"{size} B of {self.budget} B"),)
        return replace(launch_plan(), model_id=entry.id, memory=memory, fits=fits, rationale=why)


class FakeFleet:
    """Fake instances by model."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.instances: dict[str, FakeInstance] = {}
        self.changed: Callable[[FakeInstance], None] = lambda _instance: None

    def instance(self, entry: ModelEntry) -> FakeInstance:
        """The model's instance, made if need be."""
        if entry.id not in self.instances:
            self.instances[entry.id] = FakeInstance(entry.id, self.changed, self.slots)
        return self.instances[entry.id]

    def adapter(self, entry: ModelEntry) -> EngineAdapter:
        """Always llama.cpp's."""
        return LlamaCppAdapter()
