"""How much of its time this process's group was made to stand still by its CPU quota."""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.host.files import HostFiles

_QUOTA_FILES = ("cpu.max", "cpu.cfs_quota_us")
_LINE = re.compile(r"^(nr_periods|nr_throttled|throttled_usec|throttled_time) ([0-9]{1,19})[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counts since the group was made, or between two readings.

    Attributes:
        periods: in which anything in the group wanted to run.
        throttled: of them those at whose end it was stopped, its quota used up.
        seconds: stood still, summed over CPUs; None: not known.
        source: the file.
    """

    periods: int
    throttled: int
    seconds: float | None
    source: str

    @property
    def share(self) -> float:
        """Of the periods, 0 to 1; 0 of none."""
        return self.throttled / self.periods if self.periods else 0.0

    def since(self, before: Throttling | None) -> Throttling | None:
        """What came since an earlier reading; None where there is none of the same group."""
        if before is None or before.source != self.source or before.periods > self.periods:
            return None
        known = self.seconds is not None and before.seconds is not None
        return Throttling(
            periods=self.periods - before.periods,
            throttled=max(0, self.throttled - before.throttled),
            seconds=max(0.0, (self.seconds or 0.0) - (before.seconds or 0.0)) if known else None,
            source=self.source,
        )


def read_throttling(files: HostFiles, quota_source: str | None) -> Throttling | None:
    """The counts of the group whose quota decides.

    Args:
        files: the machine.
        quota_source: ``CpuBudget.source``; None is answered where it is no quota's file.
    """
    folder, _, name = (quota_source or "").rpartition("/")
    if name not in _QUOTA_FILES:
        return None
    source = f"{folder}/cpu.stat"
    found = {key: int(number) for key, number in _LINE.findall(files.text(source) or "")}
    if "nr_periods" not in found or "nr_throttled" not in found:
        return None
    seconds = None
    if "throttled_usec" in found:
        seconds = found["throttled_usec"] / 1e6
    elif "throttled_time" in found:  # version 1, in nanoseconds
        seconds = found["throttled_time"] / 1e9
    return Throttling(found["nr_periods"], found["nr_throttled"], seconds, source)
