"""The canary, wired: what it needs of the fleet, the broker and the config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio

from engines.contract import LaunchPlan, LaunchSettings
from engines.registry import adapter_for
from supervisor.app.knowledge import Knowledge
from supervisor.broker.broker import Broker
from supervisor.broker.canary_watch import CanaryTools, CanaryWatch
from supervisor.builds.quarantine import strikes_build
from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.instances.canary import CanaryResult, try_canary
from supervisor.instances.fleet import Fleet, ToolsFor
from supervisor.instances.instance import Instance
from supervisor.instances.lifecycle import InstanceState
from supervisor.models.catalog import ModelEntry

_AT_WORK_ON_MEMORY = frozenset({InstanceState.STARTING, InstanceState.STOPPING})


def canary_watch(
    knowledge: Knowledge, fleet: Fleet, broker: Broker, tools_for: ToolsFor, folder: Path, bus: EventBus
) -> CanaryWatch:
    """The watch over this daemon's builds; it hears of every change in the fleet."""

    async def attempt(entry: ModelEntry, plan: LaunchPlan, give_up: anyio.Event) -> CanaryResult:
        return await try_canary(entry, plan, tools_for(entry, _nobody), give_up, strikes_build)

    def settings_of(model: str) -> LaunchSettings | None:
        instance = fleet.known(model)
        return instance.entry.launch if instance is not None else None

    def busy() -> bool:
        loading = any(instance.state in _AT_WORK_ON_MEMORY for instance in fleet.instances())
        return loading or bool(broker.queue_view())

    tools = CanaryTools(
        adapter=adapter_for,
        plan=knowledge.launching.plan_on,
        attempt=attempt,
        settings_of=settings_of,
        busy=busy,
        idle_check=knowledge.idle_check,
        folder=folder,
    )
    watch = CanaryWatch(knowledge.shelf, knowledge.book, tools, SystemClock(), bus)
    fleet.observe(_ignoring_which(watch.look))
    return watch


def _ignoring_which(look: Callable[[], None]) -> Callable[[Instance], None]:
    return lambda _instance: look()


def _nobody(_instance: Instance) -> None:
    """Nobody observes the canary."""
