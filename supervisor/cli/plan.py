"""``plan``: how a model would be launched, and why; starts nothing, locks nothing, writes nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.cli.offline import plan_of
from supervisor.cli.output import print_json, print_rich, terminal_width, wants_json
from supervisor.cli.serve import load
from supervisor.units import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 80
_TABLE_WIDTH = 96
_COLUMNS = ("weights", "kv", "compute", "other", "margin", "total", "budget")
_TOLD_APART = frozenset({"conceded", "kept", "memory"})
_OTHER = "other: the program and its tables, and what the prompt cache and context checkpoints may grow to"
_EXIT_FITS, _EXIT_DOES_NOT_FIT = 0, 1


def plan_command(model: str, config: Path | None, as_json: bool, root: Path) -> int:
    """Print the plan; 0 if it fits, 1 if not.

    Raises:
        SupervisorError: the config is wrong, the model unknown or broken, or there is no build.
    """
    document = plan_of(load(config, os.environ).config, os.environ, model, root)
    if wants_json(asked=as_json):
        print_json(document)
    else:
        print_rich(render_plan(document, terminal_width()))
    return _EXIT_FITS if document["fits"] else _EXIT_DOES_NOT_FIT


def render_plan(document: Mapping[str, Any], width: int = _WIDTH) -> RenderableType:
    """The plan for people: the verdict, the memory by pool, what was given up, every choice with its reason."""
    from rich.console import Group  # noqa: PLC0415  for people only
    from rich.text import Text  # noqa: PLC0415  for people only

    verdict = "fits" if document["fits"] else "does NOT fit"
    head = f"{document['model']} with build {document['build']} ({document['engine']}): it {verdict}."
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [Text(f"Warning: {text}", style="yellow") for text in document["warnings"]]
    parts += [Text(), *_memory(document["memory"], width)]
    rows = document["rationale"]
    given_up = "Given up so that it fits" if document["fits"] else "Given up, and it does not fit even so"
    for title, kind in ((given_up, "conceded"), ("Not given up", "kept")):
        found = [row for row in rows if row["choice"] == kind]
        if found:
            parts += _section(title, ((row["value"], row["reason"]) for row in found))
    if document["attempts"]:
        parts += _section("What was weighed, in order", map(_attempt, document["attempts"]))
    decided = (row for row in rows if row["choice"] not in _TOLD_APART)
    parts += _section("What was decided, and why", ((_choice(row), row["reason"]) for row in decided))
    parts += [Text(), Text("The command", style="bold"), _indented(shlex.join(document["argv"]))]
    return Group(*parts)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> list[RenderableType]:
    """A title, and below it each row as a line with its reason under it: that wraps on any terminal."""
    from rich.text import Text  # noqa: PLC0415  for people only

    lines: list[RenderableType] = [Text(), Text(title, style="bold")]
    for name, reason in rows:
        lines += [_indented(name), _indented(reason, 6, style="dim")]
    return lines


def _indented(text: str, left: int = 2, style: str = "") -> RenderableType:
    from rich.padding import Padding  # noqa: PLC0415  for people only
    from rich.text import Text  # noqa: PLC0415  as text: a path in square brackets is no markup

    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, left))


def _memory(memory: Mapping[str, Any], width: int) -> list[RenderableType]:
    """A table where there is room for its columns, else a few lines for each pool; then each budget's arithmetic."""
    from rich.table import Table  # noqa: PLC0415  for people only
    from rich.text import Text  # noqa: PLC0415  for people only

    rows = {pool: {title: _size(title, parts) for title in _COLUMNS} for pool, parts in memory.items()}
    lines: list[RenderableType] = [Text("Memory, predicted", style="bold")]
    if width >= _TABLE_WIDTH:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("  pool")
        for title in _COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
        for pool, cells in rows.items():
            table.add_row(Text(f"  {pool}"), *cells.values())
        lines.append(table)
    else:
        for pool, cells in rows.items():
            lines += [_indented(pool), _indented(", ".join(f"{title} {size}" for title, size in cells.items()), 6)]
    for pool, parts in memory.items():
        lines.append(_indented(f"budget of {pool}: {parts['budget_reason'] or 'not known'}", style="dim"))
    lines.append(_indented(_OTHER, style="dim"))
    if any(parts["mapped"] for parts in memory.values()):
        mapped = format_size(sum(parts["mapped"] or 0 for parts in memory.values()))
        lines.append(
            _indented(f"{mapped} of the weights are mapped from the file, and must stay in memory", style="dim")
        )
    return lines


def _size(title: str, parts: Mapping[str, Any]) -> str:
    return format_size(parts["upper"] if title == "margin" else parts[title])


def _choice(row: Mapping[str, Any]) -> str:
    value = row["value"]
    if value is None:
        return f"{row['choice']}: not said"
    words = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return f"{row['choice']}: {words}"


def _attempt(row: Mapping[str, Any]) -> tuple[str, str]:
    needs = []
    for pool, needed in row["needed"].items():
        budget = row["budget"][pool]
        short = f", {format_size(needed - budget)} too much" if budget is not None and needed > budget else ""
        needs.append(f"{pool}: {format_size(needed)} of {format_size(budget)}{short}")
    return row["step"], "; ".join(needs)
