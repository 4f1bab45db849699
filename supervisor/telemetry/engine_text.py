"""Engines' own Prometheus texts as one, with the model as a label of each series. Pure, and bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence

# An engine tells some twenty series; one that tells thousands is cut, and the rest of its text is left out.
_SERIES = 200
_FAMILIES = 200
_LONGEST_LINE = 2000

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})?[ \t]+(\S+)(?:[ \t]+-?\d+)?")
_ABOUT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)")
_VALUE = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|Inf|NaN|inf|nan)")
_LABELS = re.compile(rf'(?:{_NAME}="(?:[^"\\\n]|\\.)*",?)*')
_TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_PARTS = re.compile(r"_(?:bucket|sum|count|total)$")
# Ours begin so; what an engine says must not mix with them.
_OURS = ("enginehouse_", "process_")


class _Family:
    """One family over all engines: they must stand together."""

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.samples: list[str] = []


def merge(texts: Sequence[tuple[str, str]]) -> bytes:
    """One text of many, each (model, text): what is no sample, or no name of an engine's, is left out."""
    families: dict[str, _Family] = {}
    for model, text in texts:
        _read(model, text, families)
    made = []
    for name, family in families.items():
        if family.samples:
            made += [f"# {what} {name} {said}" for what, said in sorted(family.about.items())]
            made += family.samples
    return "".join(f"{line}\n" for line in made).encode()


def _read(model: str, text: str, families: dict[str, _Family]) -> None:
    label = f'model="{_escaped(model)}"'
    left = _SERIES
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE:
            continue
        if about := _ABOUT.fullmatch(line):
            family = _family(about[2], families)
            if family is not None and (about[1] == "HELP" or about[3] in _TYPES):
                family.about.setdefault(about[1], about[3])
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None or left <= 0 or not _VALUE.fullmatch(sample[3]) or not _LABELS.fullmatch(sample[2] or ""):
            continue
        family = _family(sample[1], families)
        if family is None:
            continue
        left -= 1
        others = ",".join(part for part in (label, (sample[2] or "").rstrip(",")) if part)
        family.samples.append(f"{sample[1]}{{{others}}} {sample[3]}")


def _family(name: str, families: dict[str, _Family]) -> _Family | None:
    if name.startswith(_OURS):
        return None
    if name not in families:
        base = _PARTS.sub("", name)
        if base in families:
            return families[base]
        if len(families) >= _FAMILIES:
            return None
        families[name] = _Family()
    return families[name]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
