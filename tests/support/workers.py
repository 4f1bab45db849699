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
# Folders by how long their files take: what is left for the end is to be small, so that it evens out.
_PLACES = {"containers": 0, "browser": 0, "docs": 0, "engines": 1, "wire": 1, "integration": 1}
_LAST = 2
_TESTS = Path(__file__).resolve().parents[1]


def only_hands_out(config: pytest.Config) -> bool:
    """Whether this process runs no test itself, but shares them out to others."""
    shares = getattr(config.option, "dist", "no") != "no" and bool(getattr(config.option, "tx", None))
    return shares and not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many as this process may use cores; hyperthreads count, as most tests wait for others than the CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are shared out, those of long files go first; among their like the order is as random as before."""
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if not item.path.is_relative_to(_TESTS):
        return _LAST
    return _PLACES.get(item.path.relative_to(_TESTS).parts[0], _LAST)
