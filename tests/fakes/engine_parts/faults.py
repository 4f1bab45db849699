"""How the fake misbehaves, and where that is written.

Later sources win, key by key: the ``FAKE_ENGINE`` environment variable, its ``models`` map (patterns on the model
file's name), ``MODEL.gguf.fake.json`` beside the model file, and ``--fake-KEY=VALUE`` arguments.
"""

from __future__ import annotations

import fnmatch
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

VARIABLE = "FAKE_ENGINE"
SIDECAR_SUFFIX = ".fake.json"
STAGES = ("exec", "start", "load", "ready", "prefill", "stream", "stop")


class FaultError(Exception):
    """A fault that does not exist: a test with a typo must not pass."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Every knob of the fake; all default to a healthy, quick engine.

    Attributes:
        load_seconds: time between the open socket and readiness, in seconds.
        load_log: a log line every tenth of a second while loading; False loads in silence.
        says: lines of log to print while it loads.
        die: stage at which the process ends: ``exec`` (even ``--version``), ``start``, ``load``, ``ready`` (a moment
            after it), ``prefill``, ``stream`` (after ``after_chunks`` contents), ``stop`` (when asked to stop).
        signal: the signal it dies of, by name or number.
        exit: the exit code instead of a signal.
        hang: stage from which nothing is answered any more: ``load``, ``ready``, ``prefill``, ``stream``.
        stall: stage (``prefill``, ``stream``) from which generations stand still while all else is answered.
        after_chunks: content chunks before a fault in ``stream``, ``truncate`` or ``error`` strikes.
        truncate: close the connection in mid-stream, without ``[DONE]``.
        error: send an error event in mid-stream and end.
        ignore_sigterm: only SIGKILL helps.
        grandchild: ``group`` or ``session``: leave a process behind, in this or in its own session.
        memory_mib: anonymous memory to hold, in MiB.
        replay: a recorded log to print at ``start`` before it exits (with ``exit``, else ``signal``, else 1).
        log_flood: lines of 200 bytes to print before readiness.
        chunk_delay: seconds before each content chunk.
        chunks: number of content chunks of an answer; None: as many as the words of the reply.
        reply: the answer's text; None: an echo of the prompt.
        reasoning: text that comes first, as ``reasoning_content``.
        tool_call: answer with a call of the first tool even if the request does not require one, unless the last
            message is a tool's.
        poison: a text; a prompt that holds it kills the engine at once, with ``signal``.
        prefill_delay: seconds for each batch of a prompt.
        save_delay: seconds that the save of a slot takes.
        slot_files: what goes wrong with them: ``refuse`` (as with a projector), ``die`` in mid-save, ``full`` (half a
            file, and an error), ``short`` (half a file, and no error), ``no_restore`` (says that it did).
        once: only the first launch with this model file misbehaves.
        strict: refuse unknown arguments, as the real one does.
        help: ``full``, ``old`` (fewer flags) or ``empty``.
        version: what ``--version`` calls itself.
        devices: rows of ``--list-devices``.
        probe_hang: the short commands (``--version``, ``--help``, ``--list-devices``) never end.
        probe_exit: exit code of the short commands.
    """

    load_seconds: float = 0.0
    load_log: bool = True
    says: tuple[str, ...] = ()
    die: str | None = None
    signal: str | int | None = None
    exit: int | None = None
    hang: str | None = None
    stall: str | None = None
    after_chunks: int = 0
    truncate: bool = False
    error: bool = False
    ignore_sigterm: bool = False
    grandchild: str | None = None
    memory_mib: int = 0
    replay: str | None = None
    log_flood: int = 0
    chunk_delay: float = 0.0
    chunks: int | None = None
    reply: str | None = None
    reasoning: str | None = None
    tool_call: bool = False
    poison: str | None = None
    prefill_delay: float = 0.0
    save_delay: float = 0.0
    slot_files: str | None = None
    once: bool = False
    strict: bool = False
    help: str = "full"
    version: str = "1 (571d0d5)"
    devices: tuple[str, ...] = ()
    probe_hang: bool = False
    probe_exit: int = 0

    def signal_number(self) -> int:
        """The number of ``signal``; SIGABRT unless said."""
        if self.signal is None:
            return signal.SIGABRT
        return self.signal if isinstance(self.signal, int) else signal.Signals[self.signal]

    def merged(self, values: Mapping[str, Any]) -> Faults:
        """These faults with ``values`` over them.

        Raises:
            FaultError: there is no such fault.
        """
        known = {field.name for field in fields(self)}
        wrong = sorted(set(values) - known)
        if wrong:
            raise FaultError(f"no such fault: {', '.join(wrong)}; known: {', '.join(sorted(known))}")
        changed: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        result = replace(self, **changed)
        for stage in (result.die, result.hang, result.stall):
            if stage is not None and stage not in STAGES:
                raise FaultError(f"no such stage: {stage}; known: {', '.join(STAGES)}")
        return result


def parse_assignments(text: str) -> dict[str, Any]:
    """``{"chunks": 3}`` or ``chunks=3,hang=ready`` as a mapping; values are JSON where they can be.

    Raises:
        FaultError: neither of the two.
    """
    text = text.strip()
    if text.startswith("{"):
        document = json.loads(text)
        return dict(document)
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise FaultError(f"{part!r} is not KEY=VALUE")
        values[key.strip().replace("-", "_")] = _value(value)
    return values


def read_faults(environ: Mapping[str, str], arguments: Mapping[str, str], model: str | None) -> Faults:
    """All sources together, for this launch.

    Raises:
        FaultError: a source names a fault that does not exist.
    """
    values = parse_assignments(environ.get(VARIABLE, ""))
    by_model = values.pop("models", {})
    name = os.path.basename(model) if model else ""  # noqa: PTH119  pathlib would cost a tenth of the start
    for pattern, more in by_model.items():
        if name and fnmatch.fnmatch(name, pattern):
            values.update(more)
    if model:
        values.update(_sidecar(model))
    values.update({key.replace("-", "_"): _value(value) for key, value in arguments.items()})
    faults = Faults().merged(values)
    if faults.once and model and _seen_before(model):
        return Faults()
    return faults


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _sidecar(model: str) -> dict[str, Any]:
    try:
        with open(model + SIDECAR_SUFFIX, encoding="utf-8") as stream:  # noqa: PTH123  no pathlib here
            return dict(json.load(stream))
    except FileNotFoundError:
        return {}


def _seen_before(model: str) -> bool:
    """Whether an earlier launch left its mark beside the model; leaves one."""
    try:
        os.close(os.open(model + ".fake.launched", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return True
    return False
