"""What an instance notices of the world around it: other builds, and a GPU that is not there."""

from __future__ import annotations

from pathlib import Path

import anyio

from supervisor.instances.events import GpuNotUsed
from supervisor.instances.second_chance import SecondChance
from supervisor.models.catalog import ModelEntry
from tests.integration.instances.test_instance import FAILED, READY, STOPPED, stage
from tests.support.fake_engine import set_faults


async def test_other_builds_are_another_chance_for_what_has_failed(tmp_path: Path) -> None:
    """FAILED ends when what a launch would be made of changes: nobody has to restart the daemon after an update."""
    async with stage(tmp_path, die="start", signal="SIGILL") as there:
        made_of = ["old bytes"]

        async def asked(_entry: ModelEntry) -> object:
            return made_of[-1]

        there.instance._second_chance = SecondChance(asked, 0.05, there.bus)
        there.instance.want()
        await there.until(FAILED)
        assert there.instance.retry_after() == 60.0
        await anyio.sleep(0.3)  # several looks that find nothing new
        assert not there.instance.want()
        set_faults(there.model)
        made_of.append("new bytes")
        with anyio.fail_after(20):
            while not there.instance.want():  # noqa: ASYNC110  nobody is told of being forgiven
                await anyio.sleep(0.02)
        await there.until(READY)


async def test_an_engine_that_finds_no_gpu_where_one_was_planned_is_told_of(tmp_path: Path) -> None:
    """Prevents a model that runs at a tenth of its speed without a word: an event, and a warning at its plan."""
    said = "warning: no usable GPU found, --gpu-layers option will be ignored"
    async with stage(tmp_path, says=[said]) as there:
        there.instance.want()
        await there.until(READY)
        plan = there.instance.plan
        assert plan is not None
        assert not plan.warnings
        there.instance.request_stop("test")
        await there.until(STOPPED)
        there.n_gpu_layers = 99
        there.instance.want()
        await there.until(READY)
        [told] = [record.event for record in there.bus.since(0) if isinstance(record.event, GpuNotUsed)]
        assert told.line == said
        plan = there.instance.plan
        assert plan is not None
        [warning] = plan.warnings
        assert said in warning
