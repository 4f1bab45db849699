"""Waiting until an engine has noticed that a client left."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from engines.contract import EngineAdapter
from supervisor.broker.lease import Lease
from supervisor.events import EventBus, SlotStuck
from supervisor.instances.probes import ask_busy_slots

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_ASK_SECONDS = 30.0
# A batch that can't be cut takes about a second on a CPU; far beyond it the owner should know.
_STUCK_AFTER = 30.0


async def wait_until_idle(
    lease: Lease, adapter: EngineAdapter, others_running: Callable[[], int], bus: EventBus
) -> None:
    """Return when the engine works on no more slots than the running leases hold, seen twice, or the launch is gone.

    Twice, because a lease that was granted just now may not have reached the engine yet.
    """
    if adapter.slots_path is None:
        return
    began, pause, seen, said = anyio.current_time(), _FIRST_PAUSE, 0, False
    while not lease.broken:
        busy = await ask_busy_slots(lease.launch, adapter, _ASK_SECONDS)
        seen = seen + 1 if busy is not None and busy <= others_running() else 0
        if seen >= 2:  # noqa: PLR2004  see above
            return
        waited = anyio.current_time() - began
        if waited > _STUCK_AFTER and not said:
            said = True
            model = lease.request.model.id
            bus.publish(SlotStuck(lease.launch.instance_id, model, lease.slot, waited))
        await anyio.sleep(_FIRST_PAUSE if seen else pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)
