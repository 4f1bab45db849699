"""Recorded exits: JSON files that say how an engine's process ended, read into `ExitEvidence`."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.contract import ExitEvidence
from engines.evidence_exits import signal_names


class RecordError(ValueError):
    """A file that is no recorded exit; ``str()`` says where and what is wrong."""


def read_records(path: Path) -> list[ExitEvidence]:
    """The exits in a file: one JSON object, a list of them, or one a line.

    Raises:
        RecordError: not readable, not JSON, or not of this format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    records = _parse(path, text)
    return [
        _evidence(record, f"{path}{f'[{index}]' if len(records) > 1 else ''}") for index, record in enumerate(records)
    ]


def _parse(path: Path, text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            pass
        raise RecordError(f"{path}: is not JSON: {error}") from error
    return value if isinstance(value, list) else [value]


def _evidence(record: Any, where: str) -> ExitEvidence:
    fields = _Fields(record, where)
    platform = fields.text("platform") or "linux"
    end = _Fields(fields.value("exit", dict, "an object with code and signal", required=True), f"{where}: exit")
    refused = fields.value("spawn_error", dict, "an object with errno and text") or {}
    return ExitEvidence(
        engine=fields.text("engine", required=True) or "",
        argv=fields.texts("argv_hint"),
        env=fields.environment("env_hint"),
        platform=platform,
        exit_code=end.whole("code"),
        signal=_signal(end, platform),
        spawn_errno=_errno(refused.get("errno")),
        spawn_error=_Fields(refused, f"{where}: spawn_error").text("text") or _word(refused.get("errno")),
        elapsed_seconds=fields.value("elapsed_s", (int, float), "a number of seconds"),
        reached_ready=fields.flag("reached_ready"),
        stopped_by_supervisor=bool(fields.value("stopped_by_supervisor", (str, bool), "a text, true or false")),
        asked_to_stop=fields.flag("asked_to_stop"),
        log=fields.texts("log"),
        host_hints=fields.texts("host_hints"),
    )


def _signal(end: _Fields, platform: str) -> int | None:
    """A signal's number, from a number or a name."""
    value = end.value("signal", (str, int), "a signal's name or number")
    if value is None or isinstance(value, int):
        return value
    numbers = {name: number for number, name in signal_names(platform).items()}
    name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
    if name not in numbers:
        raise RecordError(f"{end.where}: signal is no signal of {platform}: {value!r}")
    return numbers[name]


def _errno(value: Any) -> int | None:
    """An errno from its number or name; a name of another system is left to the text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = getattr(errno, value, None) if isinstance(value, str) and re.fullmatch(r"E[A-Z0-9]+", value) else None
    return number if isinstance(number, int) else None


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


class _Fields:
    """Access to an object's fields by type; null counts as absent."""

    def __init__(self, record: Any, where: str) -> None:
        if not isinstance(record, Mapping):
            raise RecordError(f"{where}: a recorded exit is a JSON object, this is {type(record).__name__}")
        self._record = record
        self.where = where

    def value(self, name: str, kind: type | tuple[type, ...], wanted: str, *, required: bool = False) -> Any:
        value = self._record.get(name)
        if value is None:
            if required:
                raise RecordError(f"{self.where}: {name} is missing: it must be {wanted}")
            return None
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise RecordError(f"{self.where}: {name} must be {wanted}, this is {json.dumps(value)[:60]}")
        return value

    def text(self, name: str, *, required: bool = False) -> str | None:
        value: str | None = self.value(name, str, "a text", required=required)
        return value

    def flag(self, name: str) -> bool:
        return bool(self.value(name, bool, "true or false"))

    def whole(self, name: str) -> int | None:
        value: int | None = self.value(name, int, "a whole number")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._each(name, list, "a list of texts", list))

    def environment(self, name: str) -> dict[str, str]:
        found = self.value(name, dict, "an object of texts") or {}
        self._each(name, dict, "an object of texts", lambda value: list(value.values()))
        return dict(found)

    def _each(self, name: str, kind: type, wanted: str, parts: Callable[[Any], list[Any]]) -> list[str]:
        values = parts(self.value(name, kind, wanted) or kind())
        if any(not isinstance(value, str) for value in values):
            raise RecordError(f"{self.where}: {name} must be {wanted}")
        return values
