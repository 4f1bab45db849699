"""What the status page shows beside the status, wired."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from supervisor.app.knowledge import Knowledge
from supervisor.broker.broker import Broker
from supervisor.broker.idle_rooms import IdleRooms
from supervisor.clock import Clock
from supervisor.event_bus import EventBus
from supervisor.gateway.token_meter import TokenMeter
from supervisor.instances.fleet import Fleet
from supervisor.models.catalog import ModelEntry
from supervisor.telemetry.metrics import Vitals as Figures
from supervisor.telemetry.pulse import CpuFigures, PoolFigures, Pulse, Work


class Vitals:
    """The pulse, and what it is taken of.

    Attributes:
        meter: counts what engines write.
        pulse: its ``run`` must be running.
        rooms: what the machine leaves while no engine runs.
    """

    def __init__(self, knowledge: Knowledge, fleet: Fleet, broker: Broker, clock: Clock, bus: EventBus) -> None:
        self.meter = TokenMeter()
        self._knowledge = knowledge
        self._fleet = fleet
        self._broker = broker
        self.pulse = Pulse(self._work, self._cpu, clock, bus)
        self.rooms = IdleRooms(self._servable, knowledge.launching.rooms, broker.memory, bus)

    def document(self) -> dict[str, Any]:
        """What the status says of it: the CPU budget as last looked at, and what each model has written."""
        cpu = self.pulse.cpu
        last = self.pulse.samples[-1].throttled if self.pulse.samples else None
        return {
            "cpu": None if cpu is None else {**asdict(cpu), "throttled_share": last},
            "tokens_written": dict(self.meter.written),
        }

    def vitals(self) -> Figures:
        """What the metrics say of it, as it is now."""
        return Figures(self._work(), self.pulse.cpu)

    def _servable(self) -> tuple[ModelEntry, ...]:
        catalog = self._knowledge.router.catalog
        return () if catalog is None else catalog.usable

    def _work(self) -> Work:
        running = sum(len(self._broker.leases_on(instance.model_id)) for instance in self._fleet.instances())
        pools = {
            name: PoolFigures(pool["budget"], pool["reserved"], pool["foreign"])
            for name, pool in self._broker.memory.document().items()
        }
        return Work(self.meter.total, running, len(self._broker.queue_view()), pools)

    def _cpu(self) -> CpuFigures:
        reading = self._knowledge.read_cpu()
        cpu, throttling = reading.cpu, reading.throttling
        return CpuFigures(
            cpus=cpu.effective,
            threads=cpu.threads,
            quota=reading.quota,
            source=cpu.source,
            why=cpu.why,
            periods=throttling.periods if throttling else None,
            throttled=throttling.throttled if throttling else None,
            throttled_seconds=throttling.seconds if throttling else None,
        )
