"""What is wrong with a config: each problem with its path and how to right it, and all of them as one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.errors import ConfigError

Where = tuple[str | int, ...]
"""Keys and list positions from the root of a config to a value."""

_SHOWN = 50
_SHORT_VALUE = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: ``models.qwen.launch.ctx_size``, ``auth.callers[0].name``; empty for the file as a whole.
        message: what is wrong; never holds a value that came from the environment.
        suggestion: what to write instead, when that is known.
        line: line in the file, from 1.
    """

    path: str
    message: str
    suggestion: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        subject = f"{self.path}: " if self.path else ""
        advice = f" ({self.suggestion})" if self.suggestion else ""
        return f"{place}{subject}{self.message}{advice}"


@dataclass(frozen=True, slots=True)
class Found:
    """A problem on its way to the owner.

    Attributes:
        where: its place, by which lines and values from the environment are looked up.
        blocks: nothing more can be said of this place.
    """

    where: Where
    message: str
    suggestion: str | None = None
    line: int | None = None
    blocks: bool = True


def path_text(where: Where) -> str:
    """``auth.callers[0].name``; parts that hold blanks or control characters are quoted."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        shown = part if part.isprintable() and part and " " not in part else ascii(part)
        text += f".{shown}" if text else shown
    return text


def to_problems(
    found: Iterable[Found], lines: Mapping[Where, int], secrets: Mapping[Where, tuple[str, ...]]
) -> list[Problem]:
    """Problems in the order of the file, each once, with lines and without any value that came from the environment."""
    problems: dict[Problem, None] = {}
    for item in found:
        safe = _without_secrets(item, secrets)
        line = item.line if item.line is not None else _line_of(item.where, lines)
        problems[Problem(path_text(safe.where), safe.message, safe.suggestion, line)] = None
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.path))


def config_error(problems: list[Problem], file: Path | None) -> ConfigError:
    """``config_invalid`` with every problem in its text."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    shown = [f"  {problem}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        shown.append(f"  and {len(problems) - _SHOWN} more")
    text = "\n".join([f"{file or 'the config'} can't be used: {count}", *shown])
    return ConfigError("config_invalid", text, problems=problems, path=str(file) if file else None)


def _line_of(where: Where, lines: Mapping[Where, int]) -> int | None:
    """The line of the nearest part that is in the file."""
    return next((lines[where[:end]] for end in range(len(where), 0, -1) if where[:end] in lines), None)


def _without_secrets(item: Found, secrets: Mapping[Where, tuple[str, ...]]) -> Found:
    """At its own place a value may not be told from the words around it, so the words go; elsewhere it is replaced."""
    for where, values in secrets.items():
        near = where[: len(item.where)] == item.where or item.where[: len(where)] == where
        for form in _forms(values):
            text = item.message + (item.suggestion or "")
            if form not in text:
                continue
            if near or len(form) < _SHORT_VALUE:
                return replace(item, message="the value from the environment can't be used here", suggestion=None)
            hide = "(value from the environment)"
            suggestion = item.suggestion.replace(form, hide) if item.suggestion else None
            item = replace(item, message=item.message.replace(form, hide), suggestion=suggestion)
    return item


def _forms(values: Iterable[str]) -> list[str]:
    """The ways in which messages show a value, the longest first."""
    forms = {form for value in values for form in (value, value.strip(), ascii(value)[1:-1], repr(value)[1:-1])}
    return sorted(forms - {""}, key=len, reverse=True)
