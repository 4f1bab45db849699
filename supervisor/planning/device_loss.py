"""What a plan does about devices that are gone: never a silent fall to the CPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engines.contract import Choice, LaunchPlan
from supervisor.errors import PlanError
from supervisor.host.lost import LostDevice

Policy = Literal["fail", "degrade"]
DEGRADED = "device_lost"


@dataclass(frozen=True, slots=True)
class WithoutLost:
    """The wish for devices without those that are gone, and which of them it would have used."""

    wished: tuple[str, ...] | None
    missed: tuple[LostDevice, ...] = ()


def without_lost(model: str, wished: tuple[str, ...] | None, lost: Sequence[LostDevice], policy: Policy) -> WithoutLost:
    """Go on without what is gone, or refuse.

    Args:
        model: for the message.
        wished: devices that the config names; None: whatever there is.
        lost: devices of the chosen build that are gone.
        policy: ``host.device_lost``.

    Raises:
        PlanError: ``device_lost``: the plan would have used one of them, and the policy is ``fail``.
    """
    missed = tuple(device for device in lost if wished is None or device.device in wished)
    if not missed:
        return WithoutLost(wished)
    if policy == "fail":
        names = " and ".join(f"{device.device} ({device.name})" for device in missed)
        raise PlanError(
            "device_lost",
            f"{model} would use {names}, gone since it was last seen: {missed[0].why}. Restart the container, or "
            f"mend the driver. To go on without it set host.device_lost: degrade, host.devices.{missed[0].device}.use: "
            f"false, or name other devices in launch.devices.",
            model=model,
            devices=[device.device for device in missed],
        )
    gone = {device.device for device in missed}
    return WithoutLost(None if wished is None else tuple(name for name in wished if name not in gone), missed)


def told_of(plan: LaunchPlan, missed: Sequence[LostDevice]) -> LaunchPlan:
    """The plan that goes without them, saying so where people and clients look."""
    if not missed:
        return plan
    words = "; ".join(f"{device.device} ({device.name}): {device.why}" for device in missed)
    reason = f"planned without what is gone, as host.device_lost is degrade: {words}"
    choice = Choice(DEGRADED, [device.device for device in missed], reason)
    return replace(
        plan,
        rationale=(*plan.rationale, choice),
        warnings=(*plan.warnings, reason),
        degraded=(*plan.degraded, DEGRADED),
    )
