"""Which devices a launch uses. A first version: what the config says, and never software devices by themselves."""

from __future__ import annotations

from dataclasses import dataclass

from engines.contract import Choice, DeviceListing


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices by the build's names (empty: none; None: left to the engine) and layers on them."""

    devices: tuple[str, ...] | None
    n_gpu_layers: int | None
    choices: tuple[Choice, ...]


def choose_placement(
    wished: tuple[str, ...] | None, layers: int | None, listed: tuple[DeviceListing, ...] | None
) -> Placement:
    """Explicit wishes stand; without any, hardware devices are left to the engine and software ones are turned off."""
    if wished is not None:
        named = ", ".join(wished) or "none"
        chosen = Choice("devices", list(wished), f"from the config: {named}")
        return _with_layers(wished, 0 if not wished else layers, chosen)
    if listed is None:
        return _with_layers(None, layers, Choice("devices", None, "left to the engine: its listing can't be trusted"))
    hardware = tuple(device for device in listed if device.usable and not device.software)
    if hardware:
        names = ", ".join(f"{device.id} ({device.name})" for device in hardware)
        return _with_layers(None, layers, Choice("devices", None, f"left to the engine, which lists {names}"))
    software = [device.id for device in listed if device.software]
    why = f"only software devices ({', '.join(software)})" if software else "the build lists no device"
    if software:
        return _with_layers((), 0, Choice("devices", [], f"{why}: slower than the CPU itself"))
    return _with_layers(None, layers, Choice("devices", None, why))


def _with_layers(devices: tuple[str, ...] | None, layers: int | None, chosen: Choice) -> Placement:
    if layers is None:
        reason = "left to the engine" if devices is None else "the engine's own: as many as there are"
        return Placement(devices, None, (chosen, Choice("n_gpu_layers", None, reason)))
    reason = "no device to put layers on" if devices == () else "from the config"
    return Placement(devices, layers, (chosen, Choice("n_gpu_layers", layers, reason)))
