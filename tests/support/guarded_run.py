"""Runs pytest with the guards of this suite on a small file, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import VARIABLE

_ROOT = Path(__file__).resolve().parents[2]
_LINE = re.compile(r"^(PASSED|FAILED|ERROR) \S+::(\S+)(?: - (.*))?$", re.MULTILINE)
_UNUSED = " ".join(f"-p no:{name}" for name in ("cacheprovider", "randomly", "schemathesis", "xdist"))
_SETTINGS = f"[pytest]\nanyio_mode = auto\naddopts = {_UNUSED} -rA --strict-markers\n"
_CONFTEST = "from tests.conftest import anyio_backend\n"


@dataclass(frozen=True, slots=True)
class GuardedRun:
    """What became of each test.

    Attributes:
        outcomes: by the test's name: every outcome that was reported, such as ``PASSED`` and then ``ERROR``.
        messages: by the test's name: the last reason that was given.
        output: all that pytest wrote.
    """

    outcomes: dict[str, list[str]]
    messages: dict[str, str]
    output: str

    def section(self, name: str) -> str:
        """What pytest wrote about one test that failed."""
        parts = re.split(r"^_{3,} (.+) _{3,}$", self.output, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name, "")


def guarded_run(folder: Path, source: str, conftest: str = "") -> GuardedRun:
    """Run the tests in ``source`` under both guards; ``conftest`` is imported before the guards begin."""
    (folder / "pytest.ini").write_text(_SETTINGS, encoding="utf-8")
    (folder / "conftest.py").write_text(_CONFTEST + conftest, encoding="utf-8")
    (folder / "test_case.py").write_text(source, encoding="utf-8")
    plugins = ["-p", "tests.support.leftovers", "-p", "tests.support.loop_guard"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *plugins, "test_case.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "COLUMNS": "1000", VARIABLE: "0.6"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    outcomes: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for outcome, name, message in _LINE.findall(done.stdout):
        outcomes.setdefault(name, []).append(outcome)
        messages[name] = message or messages.get(name, "")
    return GuardedRun(outcomes, messages, done.stdout + done.stderr)
