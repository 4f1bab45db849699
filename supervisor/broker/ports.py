"""What the broker needs of instances, and no more; the fleet is handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engines.contract import EngineAdapter, LaunchPlan
from supervisor.broker.ledger import Ledger
from supervisor.errors import SupervisorError
from supervisor.host.pools import PoolRoom
from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry


class BrokeredInstance(Protocol):
    """One model's engine; see ``instances.instance.Instance``."""

    @property
    def id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def model_id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def entry(self) -> ModelEntry: ...  # noqa: D102  said in the class

    @property
    def is_ready(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def has_failed(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def accepting(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def at_rest(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def is_starting(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def backing_off(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def is_wanted(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def saving(self) -> float: ...  # noqa: D102  see ``Launch.saving``; 0 without one

    @property
    def load_seconds(self) -> float: ...  # noqa: D102  said in the class

    @property
    def can_start(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def slots(self) -> int: ...  # noqa: D102  said in the class

    @property
    def failure(self) -> SupervisorError | None: ...  # noqa: D102  said in the class

    def want(self) -> bool:
        """Ask for it to run; true when this call is what starts it."""
        ...

    def use(self, entry: ModelEntry) -> None:
        """Launch by this entry from the next launch on."""
        ...

    def drain(self) -> None:
        """Take no new requests; running ones go on."""
        ...

    def forgive(self) -> None:
        """Forget past failures."""
        ...

    def request_stop(self, reason: str) -> None:
        """Stop it, without waiting for the end."""
        ...

    def retry_after(self) -> float:
        """Seconds until another start makes sense."""
        ...

    def current_launch(self) -> Launch:
        """The launch that is READY."""
        ...

    def load_overlap(self, since: float) -> float:
        """Seconds that someone who came at ``since`` waited for the load."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """Plans for a start.

    Attributes:
        best: made for pools that hold nothing of ours; it may not fit even so.
        beside: made for what is free now; None: the same as ``best``.
        rooms: the pools, with nothing of ours taken off.
        serial_pools: those in which only one engine may load at a time.
    """

    best: LaunchPlan
    beside: LaunchPlan | None
    rooms: tuple[PoolRoom, ...]
    serial_pools: frozenset[str] = frozenset()


class Planner(Protocol):
    """Works out what a start would take; see ``launching.Launching``."""

    async def options(self, entry: ModelEntry, ledger: Ledger) -> Options:
        """The plans for a start beside what the ledger holds.

        Raises:
            PlanError: there is none.
            ModelError: ``model_broken``.
        """
        ...

    async def rooms(self, entry: ModelEntry) -> tuple[PoolRoom, ...]:
        """The pools as they are now, with nothing of ours taken off."""
        ...

    def announce(self, entry: ModelEntry, plan: LaunchPlan) -> None:
        """Tell of a plan that is launched now."""
        ...


class BrokeredFleet(Protocol):
    """Instances by model; see ``instances.fleet.Fleet``."""

    def instance(self, entry: ModelEntry) -> BrokeredInstance:
        """The model's instance, made if need be."""
        ...

    def adapter(self, entry: ModelEntry) -> EngineAdapter:
        """The adapter of the model's engine."""
        ...
