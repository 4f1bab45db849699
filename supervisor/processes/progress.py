"""Whether a starting process still gets on: what the kernel counts for it, and since when nothing moved."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.processes.held_memory import family_of

# Less than this is what a process that only answers probes does; slower disks than 64 KiB a minute are not waited for.
_READ_STEP_BYTES = 64 * 1024
_RSS_STEP_BYTES = 2**20
_FAULT_STEP = 256
# A share of one CPU: shader compilation takes a whole one, answering probes far less than a hundredth.
_CPU_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """What a process has done so far; only the movement between two samples means something.

    Attributes:
        read_bytes: bytes asked for by reads, plus bytes fetched from storage (also for mapped files); None where the
            kernel would not say.
        rss_bytes: resident memory.
        cpu_seconds: user and system time of all threads.
        faults: page faults, minor and major: a mapped file that is in the page cache moves nothing else.
    """

    read_bytes: int | None
    rss_bytes: int
    cpu_seconds: float
    faults: int


def read_progress(pid: int, root: Path = Path("/")) -> ProgressSample | None:
    """Counters of a process and its descendants from ``/proc``; None when it is gone, or where there is no ``/proc``.

    Descendants count because an engine may be behind a shell, whose own counters stand still.
    """
    own = _read_one(pid, root)
    if own is None:
        return None
    others = (_read_one(member, root) for member in family_of(pid, root) if member != pid)
    samples = [own, *(sample for sample in others if sample is not None)]
    reads = [sample.read_bytes for sample in samples if sample.read_bytes is not None]
    return ProgressSample(
        read_bytes=sum(reads) if reads else None,
        rss_bytes=sum(sample.rss_bytes for sample in samples),
        cpu_seconds=sum(sample.cpu_seconds for sample in samples),
        faults=sum(sample.faults for sample in samples),
    )


def _read_one(pid: int, root: Path) -> ProgressSample | None:
    folder = root / "proc" / str(pid)
    try:
        # The name in brackets may hold spaces and brackets of its own.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        rss_pages = int((folder / "statm").read_text().split()[1])
        # Counted from the state, which proc(5) calls field 3: minflt 10, majflt 12, utime 14, stime 15.
        faults = int(fields[7]) + int(fields[9])
        ticks = int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
    return ProgressSample(
        read_bytes=_read_bytes(folder / "io"),
        rss_bytes=rss_pages * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        faults=faults,
    )


def _read_bytes(path: Path) -> int | None:
    try:
        counters = dict(line.split(": ", 1) for line in path.read_text().splitlines())
        return int(counters["rchar"]) + int(counters["read_bytes"])
    except (OSError, ValueError, KeyError):
        return None


class StallWatch:
    """Since when a process has not moved; pure: the caller brings samples and time.

    Reads, growing memory, faults and log output are progress; that the kernel takes pages away is not. CPU time alone
    may be a loop that never ends: it counts for ``cpu_allowance`` seconds after the last real progress, and no longer.
    """

    def __init__(self, now: float, cpu_allowance: float = 600.0) -> None:
        self._cpu_allowance = cpu_allowance
        self._moved_at = now
        self._moved_for_real_at = now
        self._observed_at = now
        self._baseline: ProgressSample | None = None
        self._cpu_seconds: float | None = None
        self._log_bytes = 0

    @property
    def still_since(self) -> float:
        """Monotonic time of the last movement."""
        return self._moved_at

    def observe(self, now: float, sample: ProgressSample | None, log_bytes: int) -> float:
        """Take a look at monotonic time ``now``; seconds without movement so far.

        Args:
            now: monotonic seconds.
            sample: the process's counters, None when they can't be read.
            log_bytes: bytes of log so far; any growth is movement.
        """
        if sample is not None and self._baseline is not None and sample.rss_bytes < self._baseline.rss_bytes:
            self._baseline = replace(self._baseline, rss_bytes=sample.rss_bytes)
        if self._moved_for_real(sample, log_bytes):
            self._moved_at = self._moved_for_real_at = now
            self._baseline = sample or self._baseline
            self._log_bytes = log_bytes
        elif self._computed(now, sample) and now - self._moved_for_real_at <= self._cpu_allowance:
            self._moved_at = now
        if sample is not None:
            self._cpu_seconds = sample.cpu_seconds
        self._observed_at = now
        return now - self._moved_at

    def _moved_for_real(self, sample: ProgressSample | None, log_bytes: int) -> bool:
        if log_bytes != self._log_bytes:
            return True
        if sample is None:
            return False
        last = self._baseline
        if last is None:
            return True
        return (
            sample.rss_bytes - last.rss_bytes >= _RSS_STEP_BYTES
            or sample.faults - last.faults >= _FAULT_STEP
            or (
                sample.read_bytes is not None
                and last.read_bytes is not None
                and sample.read_bytes - last.read_bytes >= _READ_STEP_BYTES
            )
        )

    def _computed(self, now: float, sample: ProgressSample | None) -> bool:
        if sample is None or self._cpu_seconds is None:
            return False
        return sample.cpu_seconds - self._cpu_seconds > _CPU_SHARE * (now - self._observed_at)
