"""What is remembered of a living engine, and what the cgroup's counter then says of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.instances.last_sight import LastSight

_V1 = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
_V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


class Machine:
    """A tree with one process in a cgroup, that the kernel may end."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        point = root / ("sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup")
        self.counter = point / "a" / ("memory.oom_control" if version == 1 else "memory.events")
        self.counter.parent.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(_V1 if version == 1 else _V2)
        (root / "proc/7").mkdir()
        (root / "proc/7/cgroup").write_text("4:memory:/a/b\n" if version == 1 else "0::/a/b\n")
        self.alive(holds=1000)
        self.kills(3)

    def alive(self, holds: int | None) -> None:
        """What it holds in KiB; None: it is a zombie."""
        text = "" if holds is None else f"VmRSS:\t{holds} kB\nRssAnon:\t{holds} kB\n"
        (self.root / "proc/7/status").write_text(text)

    def kills(self, count: int) -> None:
        """The counter."""
        self.counter.write_text(f"oom 9\noom_kill_disable 0\nunder_oom 0\noom_kill {count}\noom_group_kill 0\n")


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_by_the_kernel_is_told(tmp_path: Path, version: int) -> None:
    """The counter of the nearest cgroup that has one, in both versions, grew between the last look and the end."""
    machine = Machine(tmp_path, version)
    sight = LastSight(7, tmp_path)
    machine.kills(4)  # another engine's, while this one lived
    sight.look()
    assert sight.hints(None, 9) == ()
    machine.alive(None)
    machine.kills(5)
    sight.look()
    assert sight.memory is not None
    assert sight.memory.anonymous == 1000 * 1024
    [hint] = sight.hints(None, 9)
    assert "oom_kill 1 since" in hint
    assert sight.hints(137, None) == (hint,)


def test_another_end_is_not_explained_by_it(tmp_path: Path) -> None:
    """Prevents a crash beside somebody else's kill from reading as a want of memory."""
    machine = Machine(tmp_path, 2)
    sight = LastSight(7, tmp_path)
    machine.kills(9)
    assert sight.hints(None, 11) == ()
    assert sight.hints(1, None) == ()


def test_without_a_counter_nothing_is_said(tmp_path: Path) -> None:
    """No cgroup file system, or a process that was never seen."""
    assert LastSight(7, tmp_path).hints(None, 9) == ()
    machine = Machine(tmp_path, 1)
    machine.counter.unlink()
    assert LastSight(7, tmp_path).hints(None, 9) == ()
