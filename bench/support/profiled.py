"""``python -m bench.support.profiled FILE ARGUMENT…``: ``python -m supervisor ARGUMENT…`` with a sampling profiler.

From SIGUSR1 on, the stack is looked at once for each millisecond of CPU time (or for each tick of the kernel, which
may be four), so that nothing is slowed down and waiting does not count. At the end FILE gets the samples as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from supervisor.__main__ import main

_SECONDS = 0.001


class Sampler:
    """Counts functions on top of the stack, and functions anywhere in it."""

    def __init__(self) -> None:
        self._own: Counter[CodeType] = Counter()
        self._inside: Counter[CodeType] = Counter()
        self._samples = 0

    def begin(self, _number: int, _frame: FrameType | None) -> None:
        """Start the clock; the handler of SIGUSR1."""
        signal.signal(signal.SIGPROF, self.sample)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)

    def sample(self, _number: int, frame: FrameType | None) -> None:
        """Count one; the handler of SIGPROF."""
        if frame is None:
            return
        self._samples += 1
        self._own[frame.f_code] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self._inside.update(seen)

    def write(self, path: Path) -> None:
        """Stop, and write what was counted."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        rows = [
            {
                "file": code.co_filename,
                "line": code.co_firstlineno,
                "function": code.co_qualname,
                "own": self._own[code],
                "inside": inside,
            }
            for code, inside in self._inside.items()
        ]
        path.write_text(json.dumps({"samples": self._samples, "functions": rows}), encoding="utf-8")


def run() -> None:
    """Run the daemon, and write FILE at its end."""
    target = Path(sys.argv.pop(1))
    sampler = Sampler()
    signal.signal(signal.SIGUSR1, sampler.begin)
    try:
        main()
    finally:
        sampler.write(target)


if __name__ == "__main__":
    run()
