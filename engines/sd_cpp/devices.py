"""What sd-server's short commands print: version and help. It lists no devices."""

from __future__ import annotations

import re

from engines.contract import CommandOutput

_VERSION = re.compile(r"^stable-diffusion\.cpp version (.+)$", re.MULTILINE)
# `  -m, --model <string>   …` and `  --clip_l <string>  …`: names are in the first column.
_HELP_LINE = re.compile(r"^ {1,6}(-[^\n]*)", re.MULTILINE)
_FLAG = re.compile(r"(?<![\w<\[-])--?[A-Za-z][\w.-]*")


def parse_version(output: CommandOutput) -> str | None:
    """What follows ``stable-diffusion.cpp version``."""
    match = _VERSION.search(output.stdout) or _VERSION.search(output.stderr)
    return match[1].strip() if match else None


def parse_flags(output: CommandOutput) -> frozenset[str] | None:
    """Every option name in ``--help``, which complains of itself and exits with 0; None when nothing was printed."""
    flags: set[str] = set()
    for line in _HELP_LINE.findall(output.stdout + "\n" + output.stderr):
        flags.update(_FLAG.findall(re.split(r"\s{2,}", line, maxsplit=1)[0]))
    return frozenset(flags) or None
