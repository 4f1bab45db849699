"""When a launch is ready: by its log line first, then by its health address; and when its load stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import anyio

from engines.contract import EngineAdapter, Health, LogSignal
from supervisor.errors import InstanceError
from supervisor.instances.launch import Launch
from supervisor.units import format_duration

# After the log line the address answers within milliseconds; without one (another build's wording) a slow look is
# enough.
_AFTER_LINE = 0.002
_WITHOUT_LINE = 0.5
_PROBE_SECONDS = 3.0


class ReadinessSignals:
    """What the log has announced of one launch; fed by the line callback.

    Attributes:
        listening: it listens.
        no_gpu: the line by which it says that it uses the CPU alone; None: it has not said so.
    """

    def __init__(self, adapter: EngineAdapter) -> None:
        self._adapter = adapter
        self.listening = anyio.Event()
        self.no_gpu: str | None = None

    def read_line(self, line: str) -> None:
        """Note what the line announces."""
        signal = self._adapter.read_line(line)
        if signal is LogSignal.LISTENING:
            self.listening.set()
        elif signal is LogSignal.NO_GPU and self.no_gpu is None:
            self.no_gpu = line


async def wait_until_ready(
    launch: Launch, adapter: EngineAdapter, signals: ReadinessSignals, standing_still: Callable[[], float], limit: float
) -> None:
    """Return when the launch answers as ready.

    Args:
        launch: the process.
        adapter: reads its answers.
        signals: what its log announced.
        standing_still: seconds since the load last made progress.
        limit: ``readiness.stall_timeout`` in seconds.

    Raises:
        InstanceError: ``start_stalled``: nothing moved for ``limit`` seconds.
    """
    while await probe(launch, adapter) is not Health.READY:
        still = standing_still()
        if still > limit:
            what = format_duration(still)
            raise InstanceError(
                "start_stalled", f"the load stood still for {what}: no log line, nothing read", still=still
            )
        if signals.listening.is_set():
            await anyio.sleep(_AFTER_LINE)
        else:
            with anyio.move_on_after(_WITHOUT_LINE):
                await signals.listening.wait()


async def probe(launch: Launch, adapter: EngineAdapter, seconds: float = _PROBE_SECONDS) -> Health:
    """Ask the health address once; no answer within ``seconds``, waiting for the gate included, is SICK."""
    url = f"{launch.base_url}{adapter.health_path}"
    try:
        async with asyncio.timeout(seconds), launch.calls, launch.session.get(url, headers=launch.headers) as answer:
            return adapter.read_health(answer.status, await answer.read())
    except (aiohttp.ClientError, TimeoutError, RuntimeError):  # RuntimeError: the session is closed
        return Health.SICK


async def ask_busy_slots(launch: Launch, adapter: EngineAdapter, seconds: float) -> int | None:
    """Slots at work by the engine's own word; None when it says nothing within ``seconds``, or has no such address."""
    if adapter.slots_path is None:
        return None
    url = f"{launch.base_url}{adapter.slots_path}"
    try:
        async with asyncio.timeout(seconds), launch.calls, launch.session.get(url, headers=launch.headers) as answer:
            return adapter.busy_slots(await answer.read())
    except (aiohttp.ClientError, TimeoutError, RuntimeError):
        return None
