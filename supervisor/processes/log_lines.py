"""The form of a model's log file: its name, and one line of it, written and read back. Pure but for ``model_of``.

A line is ``STAMP MARK TEXT``: the wall time in UTC, one character that says whose line it is, and the text. What an
engine says always stands behind ``|``, so that no engine can write a line that looks like the supervisor's own. The
first line of each file names the model, since the file's name may not say it in full.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

SUFFIX = ".log"
FOLDER_NAME = "logs"
# Of a line's text; what LogTail hands on is shorter.
MAX_TEXT_BYTES = 8192

# A name that needs no change: no file system folds, normalises or hides it.
_PLAIN_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,79}")
_READABLE_BYTES = 80
_HASH_DIGITS = 16
_SHOWN_ID_CHARACTERS = 512

_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([|><+~]) (.*)", re.DOTALL)
_LAUNCH = re.compile(r"launch (\S+)")
_MODEL = re.compile(r'launch \S+ of ("(?:[^"\\]|\\.)*")')
# The first line holds the model's id, each character of it as six at most.
_FIRST_LINE_BYTES = 8192


class Mark(StrEnum):
    """Whose a line is."""

    ENGINE = "|"
    STARTED = ">"
    ENDED = "<"
    CONTINUED = "+"
    NOTE = "~"


@dataclass(frozen=True, slots=True)
class LaunchStart:
    """What the line at a launch's start says; ``pid`` is None when no process came to be."""

    launch: str
    generation: int
    build: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """What the line at a launch's end says.

    Attributes:
        phase: ``starting``, ``ready`` or ``stopping``.
        code, signal: how the process ended; both None when there was none, or it could not be ended.
        kind: the FailureKind, or another word for why.
        log: the last lines that the process wrote; shown where a flood left them out.
    """

    launch: str
    phase: str
    code: int | None
    signal: int | None
    kind: str
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a file; ``at`` is None, and the mark the engine's, where the line is damaged."""

    at: float | None
    mark: Mark
    text: str

    @property
    def launch(self) -> str | None:
        """The launch that a line of our own is about; None: none."""
        found = None if self.mark is Mark.ENGINE else _LAUNCH.match(self.text)
        return None if found is None or found[1] == "-" else found[1]


def log_path(folder: Path, model_id: str) -> Path:
    """A model's newer log file, the same for the same id and another for each other id."""
    return folder / (_file_stem(model_id) + SUFFIX)


def older_path(path: Path) -> Path:
    """The file that the newer one becomes when it is full."""
    return path.with_name(path.name + ".1")


def model_of(path: Path) -> str:
    """The id of the model whose newer log file this is; what its name says if no first line knows it.

    Raises:
        OSError: the file (or the older one, where it isn't there) can't be read.
    """
    with (path if path.exists() else older_path(path)).open("rb") as stream:
        first = parse_line(stream.readline(_FIRST_LINE_BYTES).decode(errors="replace").rstrip("\n"))
    found = None if first.mark is Mark.ENGINE else _MODEL.match(first.text)
    model = str(json.loads(found[1])) if found else ""
    return model if log_path(path.parent, model) == path else path.name.removesuffix(SUFFIX)


def start_text(model_id: str, start: LaunchStart) -> str:
    """The text of a launch's first line."""
    pid = "no process" if start.pid is None else f"pid {start.pid}"
    return f"launch {start.launch} of {_shown(model_id)}: generation {start.generation}, build {start.build}, {pid}"


def continued_text(model_id: str, launch: str | None) -> str:
    """The text of the first line of a file that goes on where another ended."""
    return f"launch {launch or '-'} of {_shown(model_id)}, continued"


def end_text(end: LaunchEnd) -> str:
    """The text of a launch's last line."""
    if end.signal is not None:
        how = f"signal {end.signal}"
    else:
        how = "no exit code" if end.code is None else f"exit code {end.code}"
    return f"launch {end.launch} ended while {end.phase}: {how}, {end.kind}"


def left_out_text(count: int, why: str) -> str:
    """The text of the line that stands for lines that are missing."""
    return f"… {count} {'line' if count == 1 else 'lines'} left out ({why})"


class LineWriter:
    """Makes lines; remembers the last second's stamp, since most lines come many a second."""

    def __init__(self) -> None:
        self._second = -1
        self._stamp = ""

    def render(self, at: float, mark: Mark, text: str) -> bytes:
        """One whole line; a text that would break it in two, or move a reader's cursor, is changed, a long one cut."""
        start = self._start(at, mark)
        if not text.isprintable():
            text = "".join(_harmless(character) for character in text)
        encoded = text.encode(errors="replace")
        if len(encoded) > MAX_TEXT_BYTES:
            encoded = _cut(encoded)
        return start.encode() + encoded + b"\n"

    def render_plain(self, at: float, texts: Sequence[str]) -> bytes | None:
        """Lines of an engine that came together, as ``render`` makes them; None: one of them needs its care."""
        together = "".join(texts)
        if not together.isascii() or not together.replace("\t", " ").isprintable():
            return None
        if max(map(len, texts)) > MAX_TEXT_BYTES:
            return None
        start = self._start(at, Mark.ENGINE)
        return (start + f"\n{start}".join(texts) + "\n").encode()

    def _start(self, at: float, mark: Mark) -> str:
        second = int(at // 1)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{int((at - second) * 1000):03d}Z {mark} "


def parse_line(line: str) -> LogLine:
    """A line without its end, read back."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        return LogLine(None, Mark.ENGINE, line)
    try:
        at = datetime.fromisoformat(parts[1]).timestamp()
    except ValueError:  # the 31st of February
        return LogLine(None, Mark.ENGINE, line)
    return LogLine(at, Mark(parts[2]), parts[3])


def _file_stem(model_id: str) -> str:
    # Anything but a plain name gets a hash, so that two ids that differ in case, in a character that can't stand in
    # a file's name, or in their normal form don't meet in one file, also where the file system takes them as equal.
    if _PLAIN_NAME.fullmatch(model_id):
        return model_id
    digest = hashlib.sha256(model_id.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    normal = unicodedata.normalize("NFC", model_id)
    readable = "".join(character if character.isalnum() or character in "-_." else "_" for character in normal)
    readable = readable.encode(errors="replace")[:_READABLE_BYTES].decode(errors="ignore")
    return f"{readable.lstrip('.')}~{digest}"


def _shown(model_id: str) -> str:
    return json.dumps(model_id[:_SHOWN_ID_CHARACTERS])


def _harmless(character: str) -> str:
    if character == "\t" or character.isprintable():
        return character
    return " " if character.isspace() else "�"


def _cut(encoded: bytes) -> bytes:
    kept = encoded[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return kept + f" … [{len(encoded) - len(kept)} bytes cut]".encode()
