"""Whether the kernel tells of every change in a folder, by the kind of file system it is on. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable

MOUNTS = "/proc/self/mountinfo"
# All that is written there is written through this kernel. Shared folders of virtual machines (9p, virtiofs, FUSE) and
# network file systems are changed by others.
_OWN = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
_DEVICE, _PLACE, _END_OF_OPTIONS = 2, 4, "-"


def tells_of_every_change(devices: Iterable[int], files: Iterable[str], mountinfo: str) -> bool:
    """Whether a watch of their folders hears of every change of ``files``.

    Args:
        devices: ``st_dev`` of the folders; those of unknown file systems are never heard of.
        files: absolute paths. A file that is a mount of its own is changed through another folder.
        mountinfo: the text of ``/proc/self/mountinfo``.
    """
    kinds: dict[int, set[str]] = {}
    places = set()
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if _END_OF_OPTIONS not in words:
            continue
        places.add(words[_PLACE])
        major, _, minor = words[_DEVICE].partition(":")
        kind = words[words.index(_END_OF_OPTIONS) + 1 :][:1]
        if major.isdecimal() and minor.isdecimal():
            kinds.setdefault(os.makedev(int(major), int(minor)), set()).update(kind)
    wanted = [kinds.get(device, set()) for device in devices]
    if any(file.replace(" ", "\\040") in places for file in files):
        return False
    return bool(wanted) and all(found and found <= _OWN for found in wanted)
