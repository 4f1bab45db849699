"""The command ``check``: validates a config as ``serve`` would."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from supervisor.cli.interpreters import Interpreter, interpreters
from supervisor.config.load import LoadedConfig, load_config
from supervisor.config.problems import Problem
from supervisor.errors import ConfigError


def check(path: Path, json_output: bool) -> int:
    """Say what is wrong with a config, or that nothing is.

    Returns:
        0: it is good; 2: it is not, or it can't be read.
    """
    try:
        loaded = load_config(path, os.environ)
    except ConfigError as error:
        problems = error.facts.get("problems") or [Problem("", error.message)]
        _print(_document(path, problems) if json_output else error.message)
        return 2
    asked = interpreters(loaded.config, os.environ)
    if json_output:
        _print(_document(path, [], asked))
    else:
        _print("\n".join([_summary(loaded), *(one.text() for one in asked)]))
    return 0


def _document(path: Path, problems: Sequence[Problem], asked: Sequence[Interpreter] = ()) -> str:
    rows = [
        {
            "path": _printable(problem.path),
            "message": _printable(problem.message),
            "suggestion": None if problem.suggestion is None else _printable(problem.suggestion),
            "line": problem.line,
        }
        for problem in problems
    ]
    document: dict[str, Any] = {"ok": not problems, "file": _printable(str(path)), "problems": rows}
    if asked:
        document["builds"] = [one.document() for one in asked]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _summary(loaded: LoadedConfig) -> str:
    config = loaded.config
    builds = sum(len(engine.builds) for engine in config.engines.values())
    parts = (
        _count(len(config.models), "model"),
        _count(builds, "build entry", "build entries"),
        _count(len(config.auth.callers), "caller"),
    )
    return f"{loaded.path} is good: {', '.join(parts)}; listens on {config.listen.host} port {config.listen.port}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _printable(text: str) -> str:
    """File names may hold bytes that are no UTF-8; JSON can't."""
    return text.encode("utf-8", "backslashreplace").decode()


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
