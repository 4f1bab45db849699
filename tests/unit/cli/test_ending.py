"""How the process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

HANGING = """
import sys, threading
import supervisor.cli.main as main
from supervisor.cli import serve
def run_serve(config, host, port, **_):
    threading.Thread(target=threading.Event().wait).start()
    return CODE
serve.serve = run_serve
sys.argv = ["enginehouse", "serve"]
main.run()
"""


@pytest.mark.parametrize("code", [0, 2])
def test_a_thread_that_hangs_does_not_hold_the_process(code: int) -> None:
    """Prevents a daemon that never ends after SIGTERM because a thread reads a dead network share."""
    program = HANGING.replace("CODE", str(code))
    ended = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert ended.returncode == code
