"""Apple silicon: processors and GPU share one memory, of which the GPU may wire a part."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Callable

from supervisor.host.memory import MemoryBound

SIZE_KEY = "hw.memsize"
WIRED_KEY = "iogpu.wired_limit_mb"
Sysctl = Callable[[str], int | None]

_GIB = 2**30
_MIB = 2**20
# Where macOS is left to itself, engines are kept to this share, so that the system and its programs keep theirs.
_SHARE, _LARGE_SHARE, _LARGE = 0.7, 0.8, 96 * _GIB
_OTHERS_AT_MOST, _OTHERS_AT_LEAST = 16 * _GIB, 4 * _GIB


def wired_bound(sysctl: Sysctl) -> MemoryBound | None:
    """The bound on what a GPU may take of the unified memory; None where this is no such machine.

    The owner's own limit (``iogpu.wired_limit_mb``, 0: not set) stands; else it is 70 % of the memory (80 % from 96 GiB
    on), or all but 16 GiB where that is more, and never more than all but 4 GiB.
    """
    total = sysctl(SIZE_KEY)
    if not total:
        return None
    wired = sysctl(WIRED_KEY)
    if wired:
        return MemoryBound(min(total, wired * _MIB), None, f"sysctl {WIRED_KEY}")
    share = _LARGE_SHARE if total >= _LARGE else _SHARE
    size = min(max(int(share * total), total - _OTHERS_AT_MOST), total - _OTHERS_AT_LEAST)
    return MemoryBound(max(size, 0), None, f"the recommended share of sysctl {SIZE_KEY}")


def read_sysctl(name: str) -> int | None:
    """One whole number of this machine; None on any other system than macOS, or where it has no such name."""
    if sys.platform != "darwin":
        return None
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    failed = library.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else int(value.value)
