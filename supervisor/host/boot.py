"""The machine's mark of its last start: what was seen under another mark may be gone for good reasons."""

from __future__ import annotations

import re

from supervisor.host.files import HostFiles

BOOT_FILE = "/proc/sys/kernel/random/boot_id"
STAT_FILE = "/proc/stat"
_STARTED = re.compile(r"^btime ([0-9]{1,12})$", re.MULTILINE)


def boot_mark(files: HostFiles) -> str | None:
    """A container has that of its host; None where neither file says it."""
    found = files.text(BOOT_FILE)
    if found:
        return found
    started = _STARTED.search(files.text(STAT_FILE) or "")
    return f"btime {started[1]}" if started else None
