"""AMD cards by sysfs, as the amdgpu driver shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.host.cards import Card, pci_pool
from supervisor.host.files import HostFiles

_MOST_CARDS = 64  # minor numbers of DRM nodes
_FOLDER = "/sys/class/drm/card{number}/device"
_VENDOR = "0x1002"
_ADDRESS = re.compile(r"^PCI_SLOT_NAME=([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])$", re.MULTILINE)


def read_amd(files: HostFiles) -> tuple[Card, ...]:
    """The cards with what is used of them, in the order of their addresses; never raises, none where there are none."""
    return tuple(sorted(_cards(files), key=lambda card: card.pool))


def _cards(files: HostFiles) -> Iterator[Card]:
    for number in range(_MOST_CARDS):
        folder = _FOLDER.format(number=number)
        if files.text(f"{folder}/vendor") != _VENDOR:
            continue
        total = files.integer(f"{folder}/mem_info_vram_total")
        address = _ADDRESS.search(files.text(f"{folder}/uevent") or "")
        if not total or address is None:
            continue
        yield Card(
            pool=pci_pool(address[1]),
            vendor="amd",
            name=None,  # ``product_name`` is seldom there, and not what builds call it
            total=total,
            used=files.integer(f"{folder}/mem_info_vram_used"),
            spill=files.integer(f"{folder}/mem_info_gtt_total"),
            source=f"{folder}/mem_info_vram_total",
        )
