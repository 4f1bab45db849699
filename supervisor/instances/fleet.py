"""All instances: one for every model that was ever asked for."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup, TaskStatus

from engines.contract import EngineAdapter, LaunchPlan
from supervisor.errors import AdmissionError
from supervisor.events import InternalError
from supervisor.instances.instance import Instance
from supervisor.instances.lifecycle import InstanceState
from supervisor.instances.tools import InstanceLimits, InstanceTools
from supervisor.models.catalog import ModelEntry

AT_REST = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.BACKOFF)

ToolsFor = Callable[[ModelEntry, Callable[[Instance], None]], InstanceTools]


class Fleet:
    """Makes an instance when its model is first asked for, and runs it; ``run`` must be running."""

    def __init__(self, tools_for: ToolsFor, limits: InstanceLimits) -> None:
        self._tools_for = tools_for
        self._limits = limits
        self._instances: dict[str, Instance] = {}
        self._tools: dict[str, InstanceTools] = {}
        self._observers: list[Callable[[Instance], None]] = []
        self._tasks: TaskGroup | None = None
        self._closed = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run every instance; when cancelled, their engines are stopped first."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    def use(self, limits: InstanceLimits) -> None:
        """Supervise by other limits from now on."""
        self._limits = limits
        for instance in self._instances.values():
            instance.limits = limits

    def observe(self, observer: Callable[[Instance], None]) -> None:
        """Call ``observer`` in the same sync step as each change of an instance's state."""
        self._observers.append(observer)

    def instance(self, entry: ModelEntry) -> Instance:
        """The model's instance, made now if this is the first request for it.

        Raises:
            AdmissionError: ``draining``: the daemon stops, and it has none yet.
        """
        known = self._instances.get(entry.id)
        if known is not None:
            return known
        if self._closed:
            raise AdmissionError("draining", "the daemon is stopping and starts nothing")
        if self._tasks is None:
            raise AssertionError("the fleet is not running")
        tools = self._tools_for(entry, self._changed)
        instance = Instance(entry, tools, self._limits)
        self._instances[entry.id] = instance
        self._tools[entry.id] = tools
        self._tasks.start_soon(instance.run, name=f"instance {instance.id}")
        return instance

    def instances(self) -> tuple[Instance, ...]:
        """Every instance, oldest first."""
        return tuple(self._instances.values())

    def adapter(self, entry: ModelEntry) -> EngineAdapter:
        """The adapter of the model's engine."""
        return self._tools[entry.id].adapter

    def known(self, model_id: str) -> Instance | None:
        """The model's instance, if it was ever asked for."""
        return self._instances.get(model_id)

    def plans_beside(self, model_id: str) -> tuple[LaunchPlan | None, ...]:
        """Plans of the other instances that run; None: one that starts and never had one."""
        others = (instance for instance in self._instances.values() if instance.model_id != model_id)
        return tuple(instance.plan for instance in others if instance.state not in AT_REST)

    def drain(self) -> None:
        """No instance takes new requests."""
        for instance in self._instances.values():
            instance.drain()

    async def stop_all(self, reason: str) -> None:
        """Stop every engine for good, all at once, and wait until all have ended."""
        self._closed = True
        for instance in self.instances():
            instance.close(reason)
        for instance in self.instances():
            await instance.until(*AT_REST)

    def _changed(self, instance: Instance) -> None:
        """Tell all of them: a fault of one neither ends the instance's task nor keeps the others from hearing."""
        for observer in self._observers:
            try:
                observer(instance)
            except Exception as error:  # noqa: BLE001  see above
                bus = self._tools[instance.model_id].bus
                bus.publish(InternalError(f"observer of {instance.id}", repr(error), traceback.format_exc()))
