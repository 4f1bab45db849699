"""The watch over the CPUs, wired."""

from __future__ import annotations

from engines.contract import Beside, LaunchPlan
from supervisor.app.knowledge import Knowledge
from supervisor.broker.broker import Broker
from supervisor.broker.cpu_watch import CpuWatch, CpuWatchPorts
from supervisor.event_bus import EventBus
from supervisor.instances.fleet import Fleet
from supervisor.models.catalog import ModelEntry


def cpu_watch(knowledge: Knowledge, fleet: Fleet, broker: Broker, bus: EventBus) -> CpuWatch:
    """The watch; it observes the fleet, and its ``run`` must be running."""

    async def plan(entry: ModelEntry, beside: Beside) -> LaunchPlan:
        return await knowledge.launching.plan(entry, broker.memory.ledger, beside)

    def is_idle(model_id: str) -> bool:
        waiting = any(row["model"] == model_id for row in broker.queue_view())
        return not waiting and not broker.leases_on(model_id)

    ports = CpuWatchPorts(
        read=knowledge.read_cpu,
        instances=fleet.instances,
        is_idle=is_idle,
        plan=plan,
        load=broker.load,
        interval=knowledge.look_interval,
    )
    watch = CpuWatch(ports, knowledge.cpus, bus)
    fleet.observe(watch.instance_changed)
    return watch
