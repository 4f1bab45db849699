"""Metadata of models already read, kept in the state folder: a large header is walked once, not at every start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engines.contract import EngineKind, ModelMetadata
from supervisor.storage import JsonFile

CACHE_SCHEMA = 2
"""Version of the cache file's shape; it grows whenever a reader would now give other metadata for the same file."""

_Stamps = list[list[int]]
_METADATA = TypeAdapter(ModelMetadata)


class MetadataCache:
    """Metadata by engine and first file; an entry holds as long as no file of the model changes.

    Without a ``file`` it remembers for as long as it lives. Failed reads are never kept.
    """

    def __init__(self, file: JsonFile | None) -> None:
        self.file = file
        self._entries: dict[str, dict[str, Any]] = {}
        self._used: set[str] = set()
        self._changed = False

    def load(self) -> str | None:
        """Take over the file's entries; an unusable file is set aside, and the answer says why."""
        if self.file is None:
            return None
        document, reason = self.file.read()
        if reason is not None:
            self.file.set_aside()
            return reason
        entries = (document or {}).get("models")
        if isinstance(entries, dict):
            self._entries = {key: entry for key, entry in entries.items() if isinstance(entry, dict)}
        return None

    def get(self, kind: EngineKind, files: tuple[Path, ...], stamps: _Stamps) -> ModelMetadata | None:
        """What was read of these files, if they are still the same and the entry is sound."""
        key = _key(kind, files)
        entry = self._entries.get(key)
        if entry is None or entry.get("stamps") != stamps:
            return None
        try:
            metadata = _METADATA.validate_python(entry.get("metadata"))
        except ValidationError:
            return None
        self._used.add(key)
        return metadata

    def put(self, kind: EngineKind, files: tuple[Path, ...], stamps: _Stamps, metadata: ModelMetadata) -> None:
        """Remember what was read."""
        key = _key(kind, files)
        self._entries[key] = {"stamps": stamps, "metadata": _METADATA.dump_python(metadata, mode="json")}
        self._used.add(key)
        self._changed = True

    def save(self) -> str | None:
        """Forget what was not used since the last time and write what changed; says why where it can't."""
        if len(self._used) < len(self._entries):
            self._entries = {key: entry for key, entry in self._entries.items() if key in self._used}
            self._changed = True
        self._used = set()
        if self.file is None or not self._changed:
            return None
        try:
            self.file.write({"models": self._entries})
        except (OSError, TypeError) as error:  # TypeError: orjson met a path or a number that JSON can't hold
            return f"can't be written: {error}"
        self._changed = False
        return None


def stamps_of(files: tuple[Path, ...]) -> _Stamps | None:
    """Size, time of change in ns and inode of each file; None where one can't be asked."""
    try:
        facts = [path.stat() for path in files]
    except OSError:
        return None
    return [[fact.st_size, fact.st_mtime_ns, fact.st_ino] for fact in facts]


def _key(kind: EngineKind, files: tuple[Path, ...]) -> str:
    return f"{kind}:{files[0]}"
