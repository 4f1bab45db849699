"""What every test gets; the parts live in ``tests/support``."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import settings

# An example that takes long on a busy machine is no failure; what must be quick is measured by the bench.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = (
    "tests.support.workers",
    "tests.support.leftovers",
    "tests.support.loop_guard",
    "tests.support.demo",
    "tests.support.mlx_server",
    "tests.support.sd_server",
    "tests.support.toy_pictures",
)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """All async tests run on asyncio, on uvloop where it installs: as the daemon does."""
    return "asyncio", {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
