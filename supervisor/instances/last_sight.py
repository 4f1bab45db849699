"""What was seen of an engine while it lived: the only evidence there is once it is gone."""

from __future__ import annotations

import re
from pathlib import Path

import anyio

from supervisor.host.cgroup import find_cgroup
from supervisor.host.files import HostFiles
from supervisor.processes.held_memory import Resident, read_resident

_LOOK_SECONDS = 2.0
_OOM_KILLS = re.compile(r"^oom_kill (\d{1,19})$", re.MULTILINE)
_SIGKILL = 9
# A shell's word for a child that was ended by SIGKILL.
_SHELL_SIGKILL = 128 + _SIGKILL


class LastSight:
    """Looks at a living process again and again; ``run`` must be running, ``look`` does it at once.

    Attributes:
        memory: what it and its descendants held when last looked at; None: never seen.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self.memory: Resident | None = None
        self._pid = pid
        self._root = root
        self._files = HostFiles(root)
        self._cgroup: str | None = None
        self._counter: str | None = None
        self._kills: int | None = None
        self.look()

    async def run(self) -> None:
        """Look every two seconds until cancelled."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Remember what it holds, and how many the kernel has ended in its cgroup for want of memory."""
        seen = read_resident(self._pid, self._root)
        if seen is None:
            return  # what counts is the state before its end
        self.memory = seen
        cgroup = self._files.text(f"/proc/{self._pid}/cgroup")
        if cgroup is not None and cgroup != self._cgroup:
            self._cgroup = cgroup
            self._counter = self._find_counter()
        if self._counter is not None:
            self._kills = self._read_kills(self._counter)

    def hints(self, code: int | None, signal: int | None) -> tuple[str, ...]:
        """What the cgroup says about an end by SIGKILL: that the kernel killed for memory since the last look.

        Two engines in one cgroup that end by SIGKILL within one look, only one of them by the kernel, can't be told
        apart; the kernel's log could, but a container doesn't see it.
        """
        if signal != _SIGKILL and code != _SHELL_SIGKILL:
            return ()
        now = self._read_kills(self._counter) if self._counter is not None else None
        if now is None or self._kills is None or now <= self._kills:
            return ()
        return (f"cgroup {self._counter}: oom_kill {now - self._kills} since the engine was last seen",)

    def _find_counter(self) -> str | None:
        """The nearest file that counts: a child's cgroup may leave memory to one above it."""
        folders = find_cgroup(self._files, f"/proc/{self._pid}/cgroup")
        names = [f"{folder}/memory.oom_control" for folder in folders.memory]
        names += [f"{folder}/memory.events" for folder in folders.unified]
        return next((name for name in names if self._read_kills(name) is not None), None)

    def _read_kills(self, name: str) -> int | None:
        found = _OOM_KILLS.search(self._files.text(name) or "")
        return None if found is None else int(found[1])
