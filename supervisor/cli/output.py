"""What a command prints: a table for a terminal, one JSON document for a pipe or ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title, and the text of its cell for a row."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]


def wants_json(*, asked: bool) -> bool:
    """Whether to print JSON: asked for, or nobody reads a terminal."""
    return asked or not sys.stdout.isatty()


def print_json(document: Any) -> None:
    """One document, indented, on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")


def print_rich(renderable: RenderableType) -> None:
    """Anything that rich can draw, on stdout."""
    from rich.console import Console  # noqa: PLC0415  for people only

    Console(highlight=False).print(renderable)


def terminal_width() -> int:
    """Columns of the terminal."""
    from rich.console import Console  # noqa: PLC0415  for people only

    return Console().width


def table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A table; ``TITLE: none`` where there are no rows."""
    from rich.table import Table  # noqa: PLC0415  for people only
    from rich.text import Text  # noqa: PLC0415  as text: a name in square brackets is no markup

    if not rows:
        return Text(f"{title}: none")
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column.title, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(column.cell(row)) for column in columns))
    return drawn


def text_of(row: Mapping[str, Any], key: str) -> str:
    """A cell's text: ``-`` where nothing is known, ``yes`` and ``no`` for flags, lists in words."""
    value = row.get(key)
    if value is None or value in ("", [], ()):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def plain(title: str, key: str) -> Column:
    """A column that shows one key as it is."""
    return Column(title, lambda row: text_of(row, key))
