"""The CPU budget as it was last seen, and who shares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engines.contract import Beside, LaunchPlan
from supervisor.broker.cpu_events import CpuBudgetChanged
from supervisor.events import EventBus
from supervisor.host.cpu import CpuBudget
from supervisor.planning.threads import CpuShare, beside

Running = Callable[[str], Iterable[LaunchPlan | None]]
"""Plans of the instances that run beside a model's; None: one that starts and has none yet."""


class Cpus:
    """Owner of the last seen budget: tells when it is another.

    Attributes:
        epoch: grows with each change.
    """

    def __init__(self, share: Callable[[], CpuShare], running: Running, bus: EventBus) -> None:
        self._share = share
        self._running = running
        self._bus = bus
        self._last: CpuBudget | None = None
        self.epoch = 0

    def beside(self, model_id: str) -> Beside:
        """What a launch of the model would share the CPUs with now."""
        return beside(self._share(), self._running(model_id))

    def saw(self, cpu: CpuBudget) -> None:
        """The budget at this look; it is told when it is another than at the last."""
        last, self._last = self._last, cpu
        if last is None or (last.effective, last.physical_count) == (cpu.effective, cpu.physical_count):
            return
        self.epoch += 1
        self._bus.publish(
            CpuBudgetChanged(
                old=last.effective, new=cpu.effective, threads=cpu.threads, why=cpu.why or "unknown", source=cpu.source
            )
        )
