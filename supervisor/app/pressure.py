"""The watch over the machine's memory, wired."""

from __future__ import annotations

from supervisor.app.knowledge import Knowledge
from supervisor.broker.broker import Broker
from supervisor.broker.pressure_watch import PressurePorts, PressureWatch
from supervisor.clock import Clock
from supervisor.event_bus import EventBus
from supervisor.instances.fleet import Fleet


def pressure_watch(knowledge: Knowledge, fleet: Fleet, broker: Broker, clock: Clock, bus: EventBus) -> PressureWatch:
    """The watch; it observes the fleet, and its ``run`` must be running."""
    ports = PressurePorts(knowledge.read_pressure, knowledge.launching.rooms, knowledge.pressure_grace)
    watch = PressureWatch(ports, broker, clock, bus)
    fleet.observe(watch.instance_changed)
    return watch
