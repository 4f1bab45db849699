"""What an instance is given: limits from the config, and the outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import random
from typing import TYPE_CHECKING

from engines.contract import EngineAdapter, LaunchPlan
from supervisor.clock import Clock, seconds_asleep
from supervisor.config.schema import SupervisionConfig
from supervisor.events import EventBus
from supervisor.instances.attempt import AttemptTools, Flush, MemoryBack
from supervisor.instances.exit_report import LaunchEnd
from supervisor.instances.launch import Launch
from supervisor.instances.liveness import LivenessLimits
from supervisor.instances.restart_policy import RestartLimits
from supervisor.instances.second_chance import MadeOf, made_of_nothing
from supervisor.models.catalog import ModelEntry
from supervisor.processes.launch_records import LaunchRecords
from supervisor.processes.log_file import LogFile

if TYPE_CHECKING:
    from supervisor.instances.instance import Instance


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """Seconds of ``supervision``: stall of a load, grace of a stop, and the settings of restarts and of liveness."""

    stall_timeout: float = 60.0
    stop_grace: float = 5.0
    restart: RestartLimits = field(default_factory=RestartLimits)
    liveness: LivenessLimits = field(default_factory=LivenessLimits)

    @classmethod
    def of(cls, config: SupervisionConfig) -> InstanceLimits:
        """The limits that a config sets."""
        restart, liveness = config.restart, config.liveness
        return cls(
            stall_timeout=config.readiness.stall_timeout,
            stop_grace=config.stop.grace,
            restart=RestartLimits(
                restart.initial, restart.factor, restart.max, restart.budget, restart.window, restart.stable_after
            ),
            liveness=LivenessLimits(liveness.interval, liveness.timeout, liveness.failures),
        )


def nobody_blamed(_model: str, _launch: str) -> frozenset[str]:
    """No request crashes anything."""
    return frozenset()


def no_other_build(_entry: ModelEntry, _plan: LaunchPlan, _end: LaunchEnd) -> bool:
    """Whatever ended it, the next launch is like this one."""
    return False


async def no_flush(_launch: Launch) -> None:
    """Nothing to save."""


async def no_memory_elsewhere(_plan: LaunchPlan) -> None:
    """All that an engine held is free when its last process is gone."""


@dataclass(frozen=True, slots=True)
class InstanceTools:
    """What an instance needs of the outside.

    Attributes:
        prepare: chooses a build and makes the plan; raises SupervisorError.
        environment: a child's whole environment for a plan and its key.
        forget_key: told of the key of a launch that has ended.
        clean: hides secrets in a line that an engine wrote.
        runtime_dir: where sockets go.
        changed: called in the same sync step as each change of state.
        log: the model's log on disk.
        ended: told how a launch ended; whether the next one begins at once, with another build than this one's.
        flush: awaited, within a bound, before a READY engine is told to stop.
        memory_back: awaited, within a bound, when the last process of a launch is gone and before the instance is said
            to be stopped: returns when what the plan held is seen to be free.
        records: where launches are written down, for a daemon that comes after a crash.
        crashed: told of a model's launch that ended unasked while it served, before its leases are broken; answers with
            the launches, this one among them, whose ends a request is to blame for.
        asleep: seconds that the machine has been suspended since it booted.
        made_of: what a launch would be made of now, its builds; while it is FAILED, another answer forgives that.
        look_interval: seconds between two such questions.
        jitter: a number from 0 to 1 that spreads restarts in time.
    """

    adapter: EngineAdapter
    prepare: Callable[[ModelEntry], Awaitable[LaunchPlan]]
    environment: Callable[[EngineAdapter, LaunchPlan, str], dict[str, str]]
    forget_key: Callable[[str], None]
    clean: Callable[[str], str]
    runtime_dir: Path
    clock: Clock
    bus: EventBus
    changed: Callable[[Instance], None]
    log: LogFile
    ended: Callable[[ModelEntry, LaunchPlan, LaunchEnd], bool] = no_other_build
    flush: Flush = no_flush
    memory_back: MemoryBack = no_memory_elsewhere
    records: LaunchRecords = field(default_factory=LaunchRecords)
    crashed: Callable[[str, str], frozenset[str]] = nobody_blamed
    asleep: Callable[[], float] = seconds_asleep
    made_of: MadeOf = made_of_nothing
    look_interval: float = 10.0
    jitter: Callable[[], float] = random


def attempt_tools(
    instance_id: str, tools: InstanceTools, limits: InstanceLimits, liveness: Callable[[], LivenessLimits]
) -> AttemptTools:
    """What one launch of the instance needs of them."""
    return AttemptTools(
        instance_id=instance_id,
        adapter=tools.adapter,
        prepare=tools.prepare,
        environment=tools.environment,
        forget_key=tools.forget_key,
        clean=tools.clean,
        runtime_dir=tools.runtime_dir,
        clock=tools.clock,
        bus=tools.bus,
        stall_timeout=limits.stall_timeout,
        stop_grace=limits.stop_grace,
        flush=tools.flush,
        log=tools.log,
        records=tools.records,
        memory_back=tools.memory_back,
        liveness=liveness,
        asleep=tools.asleep,
    )
