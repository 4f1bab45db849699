"""Tools and texts that the tests of this folder share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "tool_calls"


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a data file."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def tool(name: str, required: list[str], **properties: object) -> dict[str, Any]:
    """A tool as a request offers it; a property is a type name or a schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("forecast_for", ["city"], city="string", days="integer", units="string"),
    tool("clock_now", []),
    tool("save_document", ["path", "text"], path="string", text="string", append="boolean"),
    tool("find_notes", ["query"], query="string", limit="integer", tags={"type": "array", "items": {"type": "string"}}),
    tool("weather-alerts", ["region"], region="string", severe_only="boolean"),
    tool("set_ratio", ["value"], value="number", opts="object"),
]


def one_space(text: str) -> str:
    """The text with each run of white space as one space, and none at its ends."""
    return " ".join(text.split())
