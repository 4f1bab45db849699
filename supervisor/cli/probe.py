"""What ``enginehouse probe`` prints: one document, as JSON or for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engines.contract import DeviceListing
from supervisor.host.cards import Card
from supervisor.host.devices import Placed, place_devices
from supervisor.host.snapshot import HostSnapshot
from supervisor.units import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class ProbedDevice:
    """One row of one build's listing; None: not known.

    Attributes:
        id: the build's own name for it, such as ``CUDA0``.
        name: the card's description.
        pool: the physical memory that it uses.
        unified: that memory is the host's.
        source: who said so.
    """

    id: str
    build: str
    name: str
    kind: str
    pool: str | None
    unified: bool | None
    total_bytes: int | None
    free_bytes: int | None
    source: str


def devices_of(
    build: str, listing: Iterable[DeviceListing] | None, cards: Sequence[Card] = ()
) -> tuple[ProbedDevice, ...]:
    """Rows of one build; none when its listing can't be trusted. What is free, the system knows better than a build."""
    rows = list(listing or ())
    placed = {row.device.id: row for row in place_devices(rows, cards)}
    return tuple(_probed(build, device, placed.get(device.id)) for device in rows)


def _probed(build: str, device: DeviceListing, placed: Placed | None) -> ProbedDevice:
    card = placed.cards[0] if placed is not None and len(placed.cards) == 1 and not placed.unified else None
    said = f"device listing of build {build}"
    free = card.free if card is not None else None
    return ProbedDevice(
        id=device.id,
        build=build,
        name=device.name,
        kind=device.kind,
        pool=placed.pool if placed is not None else None,
        unified=_is_unified(placed),
        total_bytes=device.total_bytes if device.total_bytes is not None or card is None else card.total,
        free_bytes=device.free_bytes if free is None else free,
        source=said if card is None else f"{card.source}, {said}",
    )


def _is_unified(placed: Placed | None) -> bool | None:
    """Of a card that only a build knows, it is not known."""
    if placed is None or not (placed.unified or placed.cards):
        return None
    return placed.unified


def probe_document(snapshot: HostSnapshot, devices: Sequence[ProbedDevice]) -> dict[str, Any]:
    """The document of ``probe --json``: plain values, None where not known."""
    return {
        "cpu": asdict(snapshot.cpu),
        "memory": asdict(snapshot.memory),
        "devices": [asdict(device) for device in devices],
    }


def render_probe(document: dict[str, Any]) -> RenderableType:
    """The same document for people, as something that a rich console prints."""
    from rich.console import Group  # noqa: PLC0415  the daemon never needs it

    return Group(_cpu_table(document["cpu"]), _memory_table(document["memory"]), _device_table(document["devices"]))


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table  # noqa: PLC0415  the daemon never needs it

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    from rich.text import Text  # noqa: PLC0415  the daemon never needs it

    table = _table(title)
    for name, value in rows:
        table.add_row(name, Text(value, overflow="fold"))  # as text: a path in square brackets is no markup
    return table


def _cpu_table(cpu: dict[str, Any]) -> RenderableType:
    def count(name: str, unknown: str = "unknown") -> str:
        return unknown if cpu[name] is None else f"{cpu[name]:g}"

    return _facts(
        "CPU",
        [
            ("usable", f"{count('effective')} of {count('host_count')} CPUs, threads: {cpu['threads']}"),
            ("because", _because(cpu)),
            ("cores among them", count("physical_count")),
            ("affinity", count("affinity_count")),
            ("cpuset", count("cpuset_count", "none")),
            ("quota", count("quota", "none")),
        ],
    )


def _memory_table(memory: dict[str, Any]) -> RenderableType:
    def size(name: str, unknown: str = "unknown") -> str:
        return unknown if memory[name] is None else format_size(memory[name])

    pressure = "unknown" if memory["pressure"] is None else f"{memory['pressure']:g} % of the last 10 s"
    return _facts(
        "Memory",
        [
            ("available", size("available_bytes")),
            ("because", _because(memory)),
            ("limit", size("limit_bytes", "none")),
            ("slowed above", size("high_bytes", "none")),
            ("host", f"{size('host_available_bytes')} available of {size('host_total_bytes')}"),
            ("swap (not counted)", f"{size('swap_free_bytes')} free of {size('swap_total_bytes')}"),
            ("waiting for memory", pressure),
        ],
    )


def _because(part: dict[str, Any]) -> str:
    if part["source"] is None:
        return "no file says"
    return f"{part['why']}, in {part['source']}" if part["why"] else str(part["source"])


def _device_table(devices: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415  the daemon never needs it

    if not devices:
        return Text("Devices: none listed by any build")
    table = _table("Devices", "build", "device", "kind", "free", "total", "memory", "name")
    for device in devices:
        cells = (
            device["build"],
            device["id"],
            device["kind"],
            format_size(device["free_bytes"]),
            format_size(device["total_bytes"]),
            device["pool"] or "unknown",
            device["name"],
        )
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table
