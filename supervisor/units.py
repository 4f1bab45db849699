"""Durations and sizes as people write them, and back."""

from __future__ import annotations

import re

_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")

_SIZE_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
# ASCII: without it K is also the Kelvin sign, and I the dotless one.
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[KMGT]I?)?B)", re.IGNORECASE | re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds in ``90s``, ``10m``, ``1h30m`` or ``500ms``; a bare number has no unit and is refused, 0 apart.

    Raises:
        ValueError: not a duration; the message says how to write one.
    """
    text = text.strip()
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write a number and a unit, such as 500ms, 90s, 10m or 1h30m")
    return sum(float(number) * _DURATION_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def parse_size(text: str) -> int:
    """Bytes in ``512MiB``, ``1.5GiB``, ``16 GB``; a bare number has no unit and is refused, 0 apart.

    Raises:
        ValueError: not a size; the message says how to write one.
    """
    text = text.strip()
    if text == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 512MiB, 1.5GiB or 16GB")
    return round(float(match[1]) * _SIZE_BYTES[match[2].upper()])


def format_size(count: int | None) -> str:
    """``1.5 GiB`` for people; ``unknown`` for None."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:  # noqa: PLR2004  the binary step
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_duration(seconds: float) -> str:
    """``1h30m``, ``90s`` or ``250ms``, in the form that ``parse_duration`` reads, rounded to what people care about."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms" if seconds > 0 else "0"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{left}s" if left else ""]
    return "".join(parts)
