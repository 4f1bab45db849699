"""Stand-ins for the fleet, so that the broker can be driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from engines.contract import Capability, EngineAdapter, EngineKind
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.errors import SupervisorError
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


class FakeInstance:
    """An instance whose state a test sets by hand."""

    def __init__(self, model_id: str, changed: Callable[[FakeInstance], None], slots: int = 2) -> None:
        self.id = f"{model_id}-1"
        self.model_id = model_id
        self.is_ready = False
        self.has_failed = False
        self.can_start = True
        self.draining = False
        self.slots = slots
        self.failure: SupervisorError | None = None
        self.wanted = 0
        self.stopped: list[str] = []
        self.entry: ModelEntry | None = None
        self._changed = changed

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
        return cast("Launch", object())

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
