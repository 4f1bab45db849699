"""Where this process's limits are written: its cgroup's folders and those of all ancestors that it can see.

Version 1 and 2 can be mounted side by side, and only one of them holds a given controller; both are looked at, since
the files of the other are simply not there. Mount points come from /proc/self/mountinfo, the own path from
/proc/self/cgroup. In a container these two can speak of different roots:

* path ``/``, mount root ``/``: a cgroup namespace; the limits lie at the mount point;
* path ``/docker/1f``, mount root ``/docker/1f``: the host's path, but only the container is mounted;
* path ``/a/b``, mount root ``/``: everything is visible, from ``/a/b`` up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.host.files import HostFiles

OWN_CGROUP_FILE = "/proc/self/cgroup"
MOUNTS_FILE = "/proc/self/mountinfo"

_LONGEST_PATH = 4096  # PATH_MAX
_UNIFIED = ""  # the controller field of the version 2 line of /proc/self/cgroup is empty
_ESCAPE = re.compile(r"\\([0-7]{3})")  # mountinfo writes blanks and backslashes in octal
_FIELDS_BEFORE_DASH = 6
_FIELDS_AFTER_DASH = 3


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """One line of mountinfo.

    Attributes:
        controllers: of a version 1 hierarchy; for version 2, the one empty name.
        root: parts of the path, inside the hierarchy, of what is mounted.
        point: where it is mounted.
    """

    controllers: frozenset[str]
    root: tuple[str, ...]
    point: str


@dataclass(frozen=True, slots=True)
class CgroupFolders:
    """Folders to read limits from, the own cgroup's first, then its ancestors'; some may not exist.

    Attributes:
        unified: version 2, all controllers.
        cpu, cpuset, memory: version 1, by controller.
    """

    unified: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    cpuset: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


def find_cgroup(files: HostFiles, own_file: str = OWN_CGROUP_FILE) -> CgroupFolders:
    """All folders that can hold a limit on this process; empty where no cgroup file system is mounted.

    ``own_file``: another process's, seen from here.
    """
    mounts = parse_mounts(files.text(MOUNTS_FILE) or "")
    own = parse_own_paths(files.text(own_file) or "")

    def folders(controller: str) -> tuple[str, ...]:
        return _folders(own.get(controller), [mount for mount in mounts if controller in mount.controllers])

    return CgroupFolders(folders(_UNIFIED), folders("cpu"), folders("cpuset"), folders("memory"))


def parse_mounts(text: str) -> tuple[CgroupMount, ...]:
    """The cgroup mounts in a mountinfo; malformed lines are passed over, the last on a point hides those before."""
    mounts: dict[str, CgroupMount] = {}
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if len(fields) < _FIELDS_BEFORE_DASH or len(tail) < _FIELDS_AFTER_DASH or tail[0] not in {"cgroup", "cgroup2"}:
            continue
        controllers = {_UNIFIED} if tail[0] == "cgroup2" else set(tail[2].split(","))
        point = "/" + "/".join(_parts(_unescape(fields[4])))
        mounts[point] = CgroupMount(frozenset(controllers), _parts(_unescape(fields[3])), point)
    return tuple(mounts.values())


def parse_own_paths(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parts of the own path by controller (empty: version 2); malformed lines are passed over."""
    paths: dict[str, tuple[str, ...]] = {}
    for line in text.split("\n"):
        fields = line.split(":", 2)  # a path may hold colons itself
        if len(fields) != 3 or not fields[2].startswith("/") or len(fields[2]) > _LONGEST_PATH:  # noqa: PLR2004  id:controllers:path
            continue
        for controller in fields[1].split(","):
            paths[controller] = _parts(fields[2].removesuffix(" (deleted)"))
    return paths


def _folders(own: tuple[str, ...] | None, mounts: Iterable[CgroupMount]) -> tuple[str, ...]:
    """The chain of folders through every mount that shows an ancestor.

    Where none does, or the own path is unknown, the mount points stand for it: a container is given its own part of the
    tree, so the limits there are most likely ours.
    """
    chains: list[str] = []
    for mount in mounts:
        below = None if own is None else _below(mount.root, own)
        if below is not None:
            depths = range(len(below), -1, -1)
            chains.extend("/".join((mount.point.rstrip("/"), *below[:depth])) or "/" for depth in depths)
    return tuple(dict.fromkeys(chains)) or tuple(mount.point for mount in mounts)


def _below(root: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...] | None:
    """The own path as seen from the mount's root; None when the mount does not show it."""
    if own[: len(root)] == root:
        below = own[len(root) :]
        return None if ".." in below else below  # ``..``: outside of the namespace, so outside of this mount too
    if all(part == ".." for part in root) and ".." not in own:
        return ()  # mounted from above the namespace: an ancestor, but the names of the levels between are hidden
    return None


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _unescape(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
