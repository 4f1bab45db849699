"""A recorded machine laid out below a folder, as ``probe --root`` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def lay_out(root: Path, files: Mapping[str, Any]) -> Path:
    """Write each file (text, bytes, or ``{"symlink": target}``) below ``root``; gives ``root`` back."""
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            target.symlink_to(content["symlink"])
        elif isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(content)
    return root


def host_files(online_cpus: int, affinity: Sequence[int] | None = None) -> dict[str, str]:
    """The files that say how many CPUs are online, and on which of them this process may run (None: not said)."""
    files = {"/sys/devices/system/cpu/online": f"0-{online_cpus - 1}\n" if online_cpus > 1 else "0\n"}
    if affinity is not None:
        cpus = ",".join(str(cpu) for cpu in affinity)
        files["/proc/self/status"] = f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nThreads:\t1\n"
    return files


def topology_files(siblings: Mapping[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    """The files that say which CPUs share a core."""
    return {f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}": f"{text}\n" for cpu, text in siblings.items()}


def unified(path: str = "/", mount_root: str = "/", point: str = "/sys/fs/cgroup") -> dict[str, str]:
    """One version 2 mount, and the own path in it."""
    return {
        "/proc/self/cgroup": f"0::{path}\n",
        "/proc/self/mountinfo": f"30 24 0:27 {mount_root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    }
