"""Whether the CPU has anything to compute in a launch. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from engines.contract import DeviceListing, Movable, PlanDraft

# Said by the user's extra arguments, these leave parts of the layers where we can't tell.
_PLACES = frozenset({"devices", "n_gpu_layers", "n_cpu_moe", "kv_offload"})


def gpu_resident(draft: PlanDraft, movable: Movable, listed: Iterable[DeviceListing] | None) -> bool:
    """Whether all layers and the output lie on hardware devices; what is not known counts as no.

    Args:
        draft: where things lie; devices that are left to the engine are those that it lists.
        movable: how many layers there are, the output among them.
        listed: what the build lists. A software device is the CPU in disguise.
    """
    hardware = {device.id for device in listed or () if device.usable and not device.software}
    used = hardware if draft.devices is None else set(draft.devices)
    if not used or not used <= hardware or draft.n_cpu_moe or movable.owned & _PLACES:
        return False
    layers = draft.n_gpu_layers
    return layers is None or (movable.layers is not None and layers >= movable.layers)
