"""What a build said, as a document of the cache and back, and what its silence means."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from engines.contract import BuildFacts, DeviceListing
from supervisor.processes.command import Output

UNKNOWN = BuildFacts(version=None, flags=None, devices=None)
# What a shell and setpriv answer for a command that can't be executed or found; the loader ends with 127 too.
_LOADER_CODES = (126, 127)
_SHOWN_LINES = 3


def facts_to_document(facts: BuildFacts) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "version": facts.version,
        "flags": None if facts.flags is None else sorted(facts.flags),
        "devices": None if facts.devices is None else [asdict(device) for device in facts.devices],
    }


def facts_from_document(document: Any) -> BuildFacts | None:
    """The facts, without what may have changed since; None when the document isn't one of ours."""
    try:
        flags, devices = document["flags"], document["devices"]
        facts = BuildFacts(
            version=document["version"],
            flags=None if flags is None else frozenset(map(str, flags)),
            devices=None if devices is None else tuple(DeviceListing(**device) for device in devices),
        )
    except (KeyError, TypeError):
        return None
    return without_free(facts)


def without_free(facts: BuildFacts) -> BuildFacts:
    """The same, but free memory is not known: it was true only when the build was asked."""
    if facts.devices is None:
        return facts
    return replace(facts, devices=tuple(replace(device, free_bytes=None) for device in facts.devices))


def find_problem(outputs: Sequence[Output], limit_seconds: float) -> str | None:
    """Why a build can't be used, from how its short commands ended: version, help, devices.

    A missing library or an instruction that this processor lacks ends every start. Any other failure counts only when
    all of them failed: a build may not know one of the options, or stumble over one driver.
    """
    for output in outputs:
        if output.exit is not None and output.exit.signal == signal.SIGILL:
            return f"it uses instructions that this processor does not have (SIGILL){_last_words(output)}"
    for output in outputs:
        if output.exit is not None and output.exit.code in _LOADER_CODES:
            return f"it can't be loaded (exit code {output.exit.code}){_last_words(output)}"
    if all(output.exit is None for output in outputs):
        return f"it did not answer within {limit_seconds:g} s{_last_words(outputs[0])}"
    if not any(_succeeded(output) for output in outputs):
        return f"none of its short commands worked: {_ending(outputs[0])}{_last_words(outputs[0])}"
    return None


def all_succeeded(outputs: Sequence[Output]) -> bool:
    """Whether every command ended with code 0; anything else may be different next time."""
    return all(_succeeded(output) for output in outputs)


def _succeeded(output: Output) -> bool:
    return output.exit is not None and output.exit.code == 0


def _ending(output: Output) -> str:
    if output.exit is None:
        return "it did not end in time"
    if output.exit.signal is not None:
        return f"it ended with signal {output.exit.signal}"
    return f"it ended with exit code {output.exit.code}"


def _last_words(output: Output) -> str:
    lines = [line.strip() for line in (output.stderr or output.stdout).splitlines() if line.strip()]
    return ": " + " / ".join(lines[-_SHOWN_LINES:]) if lines else ""
