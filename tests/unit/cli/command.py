"""Runs a command of the command line in this process."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

from supervisor.cli.main import build_app


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def enginehouse(*args: str, on_terminal: bool = False) -> Ended:
    """Run ``enginehouse ARGS``; stdout is a pipe unless said otherwise."""
    out = Terminal() if on_terminal else io.StringIO()
    err = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            build_app()(list(args), prog_name="enginehouse")
        except SystemExit as ended:
            code = ended.code
    assert code is None or isinstance(code, int)
    return Ended(code or 0, out.getvalue(), err.getvalue())
