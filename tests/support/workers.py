"""How the tests are shared out among processes, with ``pytest -n auto --dist loadfile``. A test plugin.

A file is run by one process, with its fixtures; those of the session are made once in each process that asks for them.
What a file does to the machine itself must bear a neighbour: ports that are free when asked for, names that nobody
else has, no counting of processes that are not below this one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Each process may come to have daemons and real engines of its own: more would be a matter of memory, not of cores.
MOST_WORKERS = 4
# Folders whose files take long: they go first, so that what is left for the end is small and evens out.
_LONG = ("containers", "engines", "browser", "docs", "wire", "integration")
_TESTS = Path(__file__).resolve().parents[1]


def only_hands_out(config: pytest.Config) -> bool:
    """Whether this process runs no test itself, but shares them out to others."""
    return getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many as this process may use cores; hyperthreads count, as most tests wait for others than the CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are shared out, the long ones first; the order is as random as before within both halves."""
    if hasattr(config, "workerinput"):
        items.sort(key=_is_short)


def _is_short(item: pytest.Item) -> bool:
    path = item.path
    return not (path.is_relative_to(_TESTS) and path.relative_to(_TESTS).parts[0] in _LONG)
