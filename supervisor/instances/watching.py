"""Looks at a ready engine again and again, until it is given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.contract import EngineAdapter, Health
from supervisor.clock import Clock
from supervisor.events import EventBus
from supervisor.instances.events import ProbeMissed
from supervisor.instances.launch import Launch
from supervisor.instances.liveness import LivenessLimits, Look, Standing, judge
from supervisor.instances.probes import ask_busy_slots, probe


@dataclass(frozen=True, slots=True)
class WatchTools:
    """What a watch needs of the outside; ``asleep`` gives the seconds that the machine has been suspended."""

    adapter: EngineAdapter
    limits: Callable[[], LivenessLimits]
    clock: Clock
    bus: EventBus
    asleep: Callable[[], float]


class LivenessWatch:
    """Watches one launch while it is READY; the launch's requests leave their progress there.

    Attributes:
        reason: why the engine is given up, once ``run`` has returned.
    """

    def __init__(self, launch: Launch, model: str, tools: WatchTools) -> None:
        self.reason = ""
        self._launch = launch
        self._model = model
        self._tools = tools

    async def run(self) -> None:
        """Return when the engine is unresponsive."""
        tools = self._tools
        standing = Standing(tools.clock.monotonic(), tools.asleep())
        while True:
            limits = tools.limits()
            await self._launch.wait_for_look(limits.interval)
            judgement = judge(limits, standing, await self._look(limits))
            standing = judgement.standing
            if judgement.missed:
                launch = self._launch
                missed = ProbeMissed(launch.instance_id, self._model, launch.id, standing.missed, limits.failures)
                tools.bus.publish(missed)
            if judgement.unresponsive is not None:
                self.reason = judgement.unresponsive
                return

    async def _look(self, limits: LivenessLimits) -> Look:
        launch, tools = self._launch, self._tools
        began = tools.clock.monotonic()
        overdue = launch.take_overdue()
        answered = await probe(launch, tools.adapter, limits.timeout) is Health.READY
        busy = None
        if answered and overdue is not None:
            busy = await ask_busy_slots(launch, tools.adapter, limits.timeout)
        return Look(
            began=began,
            ended=tools.clock.monotonic(),
            asleep=tools.asleep(),
            answered=answered,
            progress_at=launch.progress_at,
            overdue=overdue,
            busy=busy,
        )
