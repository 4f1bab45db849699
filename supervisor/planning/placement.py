"""Where the layers of a model go: one device, several, a part of them, or the CPU. Pure.

The largest placement that fits wins. What a user wrote stands: devices by name are all used and no others, a number of
layers is not changed. Software devices, which are the CPU in disguise, are used only by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from engines.contract import DeviceListing, Movable, PlanDraft
from supervisor.planning.scales import Scales, Weighed

Place = Callable[[PlanDraft], Weighed]
"""Puts a draft somewhere, as well as it fits there."""

# One layer is the output, and a device that holds nothing else still takes its compute buffers.
LEAST_LAYERS = 2
_MOST_SHIFTS = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """The devices that a launch may use.

    Attributes:
        devices: with the most room first; None: the build's listing can't be trusted, so they are left to the engine.
        named: by the user, who then gets all of them.
        layers: number that the user wrote; None: ours to choose.
        why: why these devices and no others, in words.
    """

    devices: tuple[str, ...] | None
    named: bool
    layers: int | None
    why: str


def offer_devices(
    wished: tuple[str, ...] | None, layers: int | None, listed: tuple[DeviceListing, ...] | None, scales: Scales
) -> Offer:
    """Explicit wishes stand; without any, hardware devices that have a room are offered."""
    if wished is not None:
        return Offer(
            wished, named=True, layers=layers if wished else 0, why=f"from the config: {', '.join(wished) or 'none'}"
        )
    if listed is None:
        return Offer(None, named=False, layers=layers, why="left to the engine: its listing can't be trusted")
    hardware = [device for device in listed if device.usable and not device.software]
    offered = [device for device in hardware if scales.budget(scales.pool_of(device.id)) != 0]
    if layers == 0 and offered:
        why = "n_gpu_layers is 0, and a device that holds no layer would still take memory for computing"
        return Offer((), named=False, layers=0, why=why)
    if offered:
        ordered = sorted(offered, key=lambda device: -(scales.device_room(device.id) or device.free_bytes or 0))
        names = ", ".join(f"{device.id} ({device.name})" for device in ordered)
        return Offer(tuple(device.id for device in ordered), named=False, layers=layers, why=f"the build lists {names}")
    software = [device.id for device in listed if device.software]
    if hardware:
        why = "; ".join(f"no room on {device.id}: {scales.why(scales.pool_of(device.id))}" for device in hardware)
    elif software:
        why = f"only software devices ({', '.join(software)}): slower than the CPU itself"
    else:
        why = "the build lists no device"
    return Offer((), named=False, layers=0, why=why)


class Placements:
    """Searches the placements of one model for drafts of it."""

    def __init__(self, offer: Offer, movable: Movable, scales: Scales) -> None:
        self._offer = offer
        self._movable = movable
        self._scales = scales
        self._devices = offer.devices or ()

    def whole(self, draft: PlanDraft) -> Weighed:
        """All layers, or as many as the user wrote, on one device, else on all of them; what misses by least."""
        if not self._devices:
            nothing = replace(draft, devices=self._offer.devices, n_gpu_layers=self._offer.layers)
            return self._scales.weigh(nothing)
        layers = self._offer.layers if self._offer.layers is not None else self._movable.layers
        return _best(self._spread(draft, layers))

    def moves(self) -> Mapping[str, Place]:
        """The ways off the devices that there are for this model and these wishes, by the names of their steps."""
        owned, most = self._movable.owned, self._movable.layers
        free = self._offer.layers is None and "n_gpu_layers" not in owned
        moves: dict[str, Place] = {}
        if not self._devices:
            return moves
        if self._movable.expert_layers and "n_cpu_moe" not in owned:
            moves["experts_to_cpu"] = self._experts_on_host
        if free and most is not None and most > LEAST_LAYERS and "tensor_split" not in owned:
            moves["n_gpu_layers"] = self._part
        if free and not self._offer.named and "devices" not in owned:
            moves["cpu"] = self._on_cpu
        return moves

    def _experts_on_host(self, draft: PlanDraft) -> Weighed:
        """As ``whole``, with the experts of as few layers as will do in host memory."""
        return smallest(1, self._movable.expert_layers, lambda layers: self.whole(replace(draft, n_cpu_moe=layers)))

    def _part(self, draft: PlanDraft) -> Weighed:
        """As many layers on devices as fit."""
        most = (self._movable.layers or 0) - 1
        return largest(LEAST_LAYERS, most, lambda layers: _best(self._spread(draft, layers)))

    def _on_cpu(self, draft: PlanDraft) -> Weighed:
        """No device at all."""
        return self._scales.weigh(replace(draft, devices=(), n_gpu_layers=0, tensor_split=(), n_cpu_moe=0))

    def _spread(self, draft: PlanDraft, layers: int | None) -> Iterator[Weighed]:
        several = len(self._devices) > 1
        if not (several and self._offer.named):
            yield self._scales.weigh(replace(draft, devices=self._devices[:1], n_gpu_layers=layers, tensor_split=()))
        if several:
            yield self._split(replace(draft, devices=self._devices, n_gpu_layers=layers))

    def _split(self, draft: PlanDraft) -> Weighed:
        """By free bytes, in whole layers; then layers go from where there are too many to where there is room."""
        layers = draft.n_gpu_layers
        rooms = [self._scales.device_room(device) for device in self._devices]
        if layers is None or None in rooms or "tensor_split" in self._movable.owned:
            return self._scales.weigh(draft)
        split = _shares(min(layers, self._movable.layers or layers), [room or 0 for room in rooms])
        best = weighed = self._scales.weigh(replace(draft, tensor_split=split))
        for _ in range(_MOST_SHIFTS):
            shifted = None if weighed.fits else self._shifted(weighed)
            if shifted is None:
                break
            weighed = self._scales.weigh(replace(draft, tensor_split=shifted))
            best = min(best, weighed, key=lambda one: one.worst)
        return best

    def _shifted(self, weighed: Weighed) -> tuple[int, ...] | None:
        """The split with layers moved from the fullest device to the emptiest; None where that can't help."""
        split = list(weighed.draft.tensor_split)
        over = [weighed.excess.get(self._scales.pool_of(device), 0) for device in self._devices]
        fullest, emptiest = over.index(max(over)), over.index(min(over))
        pool = self._scales.pool_of(self._devices[fullest])
        if over[fullest] <= 0 or over[emptiest] >= 0 or split[fullest] <= 1:
            return None
        parts = weighed.memory[pool]
        layer = max(1, ((parts.weights or 0) + (parts.kv or 0)) // split[fullest])
        count = min(split[fullest] - 1, max(1, over[fullest] // layer))
        split[fullest] -= count
        split[emptiest] += count
        return tuple(split)


def _shares(layers: int, rooms: list[int]) -> tuple[int, ...]:
    """Layers by room; each device gets at least one where there are enough."""
    whole = sum(rooms) or len(rooms)
    parts = [layers * (room or (1 if not sum(rooms) else 0)) / whole for room in rooms]
    counts = [int(part) for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda place: counts[place] - parts[place])
    for place in by_rest[: layers - sum(counts)]:
        counts[place] += 1
    return tuple(counts)


def _best(candidates: Iterator[Weighed]) -> Weighed:
    """The first that fits, else what is least over."""
    seen = []
    for weighed in candidates:
        if weighed.fits:
            return weighed
        seen.append(weighed)
    return min(seen, key=lambda one: one.worst)


def largest(least: int, most: int, weigh: Callable[[int], Weighed]) -> Weighed:
    """What fits with the largest number from ``least`` to ``most``, where more needs more; else what ``least`` needs.

    Needs grow evenly as a rule, so the next guess is where a straight line between two known ones meets the budget.
    """
    low, high = weigh(least), weigh(most)
    if high.fits or not low.fits:
        return high if high.fits else low
    step = 0
    while most - least > 1:
        slope = (high.worst - low.worst) or 1
        line = least + (most - least) * -low.worst // slope
        # Every third guess halves what is left, for what does not grow evenly.
        guess = (least + most) // 2 if step % 3 == 2 else min(max(line, least + 1), most - 1)  # noqa: PLR2004  see above
        weighed = weigh(guess)
        if weighed.fits:
            least, low = guess, weighed
        else:
            most, high = guess, weighed
        step += 1
    return low


def smallest(least: int, most: int, weigh: Callable[[int], Weighed]) -> Weighed:
    """What fits with the smallest number, where more needs less; else what ``most`` needs."""
    return largest(-most, -least, lambda number: weigh(-number))
