"""Prompts without what a picture engine could take for more than text. Pure.

``<sd_cpp_extra_args>`` would let anyone set options of the engine and paths of files, and ``<lora:…>`` name files. The
job interface that is used here reads neither; they are taken apart all the same, whoever else may read the text.
"""

from __future__ import annotations

import re

_COMMANDS = re.compile(r"<(?=\s*/?\s*(?:sd_cpp_extra_args|lora|lyco|hypernet)\b)", re.IGNORECASE)
# A sign that looks like it and opens nothing: a single left-pointing angle quotation mark.
_HARMLESS = "\u2039"
NOTE = "`{field}`: what looks like a command to the engine was kept as plain text; LoRAs are named by `loras`"


def neutral(text: str) -> tuple[str, bool]:
    """The text with no command in it, and whether it had any."""
    made, count = _COMMANDS.subn(_HARMLESS, text.replace("\0", ""))
    return made, count > 0
