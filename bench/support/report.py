"""What a command prints: tables with a machine line and notes, drawn on a terminal, Markdown elsewhere."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.support.errors import BenchError
from bench.support.machine import machine_line


@dataclass(slots=True)
class Table:
    """Rows under named columns; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(cells)


class Progress:
    """Says on stderr what is being measured, on a terminal only."""

    def __call__(self, text: str) -> None:
        """Replace the line."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def done(self) -> None:
        """Remove the line."""
        self("")


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that every command has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 20 s: shows that it works, not how fast")
    parser.add_argument("--markdown", action="store_true", help="Markdown, also on a terminal")
    return parser


def run(name: str, parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Sequence[Table]]) -> None:
    """Read the options, measure, print. Exit code 2 when it could not be measured."""
    chosen = parser.parse_args()
    before = machine_line()
    try:
        tables = measure(chosen)
    except BenchError as error:
        Progress().done()
        sys.stderr.write(f"bench: {error}\n")
        raise SystemExit(2) from None
    Progress().done()
    command = shlex.join(["python", "-m", f"bench.{name}", *sys.argv[1:]])
    show(tables, command, before, markdown=chosen.markdown or not sys.stdout.isatty())


def show(tables: Sequence[Table], command: str, machine: str, *, markdown: bool) -> None:
    """Print the tables and where they come from."""
    if markdown:
        for table in tables:
            print(to_markdown(table))
        print(f"`{command}` on {machine}\n")
        return
    from rich.console import Console  # noqa: PLC0415  on a terminal only
    from rich.table import Table as Drawn  # noqa: PLC0415  as above

    console = Console(highlight=False)
    for table in tables:
        drawn = Drawn(title=table.title, title_justify="left")
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
        for note in table.notes:
            console.print(f"  {note}", markup=False)
    console.print(f"{command}\n{machine}", markup=False, style="dim")


def to_markdown(table: Table) -> str:
    """A table as Markdown; the notes become a list below it."""
    lines = [f"**{table.title}**", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("|---" + "|---:" * (len(table.columns) - 1) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join([*lines, ""])


def milliseconds(seconds: float) -> str:
    """``1.23 ms``."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds * 1000:,.0f} ms"


def mebibytes(size: float) -> str:
    """``61.2 MiB``."""
    return f"{size / 2**20:.1f} MiB"
