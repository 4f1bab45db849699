"""``plan``: how a model would be launched, and why; starts nothing, locks nothing, writes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.cli.offline import plan_of
from supervisor.cli.output import print_json, print_rich, wants_json
from supervisor.cli.serve import load
from supervisor.units import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

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
        print_rich(render_plan(document))
    return _EXIT_FITS if document["fits"] else _EXIT_DOES_NOT_FIT


def render_plan(document: Mapping[str, Any]) -> RenderableType:
    """The plan for people: the choices with their reasons, the memory table, the command."""
    from rich.console import Group  # noqa: PLC0415  for people only
    from rich.table import Table  # noqa: PLC0415  for people only
    from rich.text import Text  # noqa: PLC0415  for people only

    choices = Table(title=f"Plan for {document['model']} ({document['engine']})", title_justify="left", box=None)
    for title in ("choice", "value", "because"):
        choices.add_column(title, overflow="fold")
    for row in document["rationale"]:
        value = "-" if row["value"] is None else str(row["value"])
        choices.add_row(Text(row["choice"]), Text(value), Text(row["reason"]))
    memory = Table(title="Memory, predicted", title_justify="left", box=None)
    for title in ("pool", "weights", "kv", "compute", "other", "total"):
        memory.add_column(title)
    for pool, parts in document["memory"].items():
        memory.add_row(pool, *(format_size(parts[part]) for part in ("weights", "kv", "compute", "other", "total")))
    fits = "fits" if document["fits"] else "does NOT fit"
    warnings = [Text(f"warning: {text}", style="yellow") for text in document.get("warnings", ())]
    return Group(choices, memory, Text(f"It {fits}."), *warnings, Text(" ".join(document["argv"]), overflow="fold"))
