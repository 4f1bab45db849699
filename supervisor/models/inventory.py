"""Finds the models in the model folders and reads their headers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from engines.contract import EngineAdapter, EngineError, EngineKind, ModelMetadata, NotAModelError
from supervisor.events import Event, EventBus, ModelPathSkipped, StateFileUnusable
from supervisor.models.metadata_cache import MetadataCache, stamps_of
from supervisor.models.walk import walk
from supervisor.storage import JsonFile

_PART = re.compile(r"-[0-9]{5}-of-[0-9]{5}$")
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model in a folder, or a file that was meant to be one.

    Attributes:
        id: the (first) file's name without ending and part number; blanks become ``-``.
        path: the (first) file.
        files: all files, in order; only the first where parts are missing.
        metadata: None where it is broken.
        broken: why it can't be served, in words for the owner.
        named: the config names it, by its parts.
    """

    id: str
    engine: EngineKind
    path: Path
    files: tuple[Path, ...]
    metadata: ModelMetadata | None
    broken: str | None
    named: bool = False


@dataclass(frozen=True, slots=True)
class NamedParts:
    """A model that a config names by its parts: by role, the places at which each may lie."""

    id: str
    engine: EngineKind
    places: Mapping[str, tuple[Path, ...]]


class Inventory:
    """Searches folders for models; remembers what it read, in ``cache`` (made with ``CACHE_SCHEMA``) too."""

    def __init__(self, adapters: Mapping[EngineKind, EngineAdapter], cache: JsonFile | None, bus: EventBus) -> None:
        self._adapters = adapters
        self._cache = MetadataCache(cache)
        self._bus = bus
        self._lock = threading.Lock()
        self._loaded = False
        self._notes: list[Event] = []
        self._published: frozenset[Event] = frozenset()

    async def refresh(
        self,
        dirs: Iterable[Path],
        explicit_files: Iterable[tuple[EngineKind, Path]] = (),
        named: Iterable[NamedParts] = (),
    ) -> tuple[FoundModel, ...]:
        """``scan`` in a worker thread, then publish what was skipped and was not already said last time."""
        # A folder on a dead network share may hold the thread for ever: it is left behind at a stop.
        asked = (tuple(dirs), tuple(explicit_files), tuple(named))
        found = await anyio.to_thread.run_sync(self.scan, *asked, abandon_on_cancel=True)
        notes, self._notes = self._notes, []
        for note in notes:
            if note not in self._published:
                self._bus.publish(note)
        self._published = frozenset(notes)
        return found

    def scan(
        self,
        dirs: Iterable[Path],
        explicit_files: Iterable[tuple[EngineKind, Path]] = (),
        named: Iterable[NamedParts] = (),
    ) -> tuple[FoundModel, ...]:
        """All models under ``dirs``, the first folder's first, then those of ``explicit_files`` that exist elsewhere.

        Those of ``named`` come last, whether they are whole or not.
        Reads files, so it belongs in a worker thread; publishes nothing itself. What is no model of its own and later
        parts are listed only where they were named explicitly, as broken.
        """
        with self._lock:
            notes = self._load_cache()
            suffixes = tuple(suffix for adapter in self._adapters.values() for suffix in adapter.model_suffixes)
            walked = walk(dirs, suffixes)
            notes += [ModelPathSkipped(skipped.path, skipped.reason) for skipped in walked.skipped]
            found: dict[tuple[EngineKind, Path], FoundModel] = {}
            for path in walked.files:
                for adapter in self._adapters.values():
                    if path.name.lower().endswith(adapter.model_suffixes):
                        self._look(adapter, path, found, named=False)
            for kind, path in explicit_files:
                if (kind, path) not in found and kind in self._adapters and _is_there(path):
                    self._look(self._adapters[kind], path, found, named=True)
            parted = [_read_parts(self._adapters[one.engine], one) for one in named if one.engine in self._adapters]
            if reason := self._cache.save():
                notes.append(self._cache_unusable(reason))
            self._notes = notes
            return (*found.values(), *parted)

    def _look(
        self, adapter: EngineAdapter, path: Path, found: dict[tuple[EngineKind, Path], FoundModel], *, named: bool
    ) -> None:
        files: tuple[Path, ...] | None = (path,)
        metadata, broken = None, None
        try:
            files = adapter.split_files(path)
            if files is not None:
                metadata = self._read(adapter, files)
            elif named:
                broken = f"{path.name} is a later part of a model. Name its first part."
            else:
                return
        except NotAModelError as error:
            if not named:
                return
            broken = str(error)
        except EngineError as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001  one file that a reader stumbles over must not hide the others
            broken = f"reading it failed by a fault of our own: {error!r}. Please report it."
        root = adapter.model_root(path)
        place = path if named else root
        found[adapter.kind, place] = FoundModel(
            _id_of(root, adapter), adapter.kind, place, files or (path,), metadata, broken
        )

    def _read(self, adapter: EngineAdapter, files: tuple[Path, ...]) -> ModelMetadata:
        stamps = stamps_of(files)  # before the read: a file that changes meanwhile is read again next time
        if stamps is None:
            return adapter.read_metadata(files)
        metadata = self._cache.get(adapter.kind, files, stamps)
        if metadata is None:
            metadata = adapter.read_metadata(files)
            self._cache.put(adapter.kind, files, stamps, metadata)
        return metadata

    def _load_cache(self) -> list[Event]:
        if self._loaded:
            return []
        self._loaded = True
        reason = self._cache.load()
        return [self._cache_unusable(reason)] if reason else []

    def _cache_unusable(self, reason: str) -> StateFileUnusable:
        return StateFileUnusable(str(self._cache.file.path if self._cache.file else ""), reason)


def _read_parts(adapter: EngineAdapter, named: NamedParts) -> FoundModel:
    """The model that these parts make, or why they make none; headers of parts are small, so none is remembered."""
    unknown = [role for role in named.places if role not in adapter.parts]
    nowhere = [role for role, tried in named.places.items() if not tried]
    ordered = {role: named.places[role] for role in adapter.parts if role in named.places}
    places = {role: next(filter(_is_there, tried), tried[0]) for role, tried in ordered.items() if tried}
    files = tuple(places.values())
    metadata, broken = None, None
    if unknown:
        known = ", ".join(adapter.parts) or "none: name its first file as `file`"
        broken = f"`files` of {named.id} names {', '.join(unknown)}; the parts of {adapter.kind} are {known}."
    elif nowhere:
        broken = f"{', '.join(nowhere)} of {named.id} names no folder, and model_dirs is empty: write the whole path."
    elif missing := [f"{role} ({path})" for role, path in places.items() if not _is_there(path)]:
        broken = f"parts of {named.id} were not found: {', '.join(missing)}. Fetch them, or correct `files`."
    else:
        try:
            metadata = adapter.read_parts(places)
        except EngineError as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001  see Inventory._look
            broken = f"reading it failed by a fault of our own: {error!r}. Please report it."
    return FoundModel(
        named.id, adapter.kind, files[0] if files else Path(named.id), files, metadata, broken, named=True
    )


def _id_of(path: Path, adapter: EngineAdapter) -> str:
    other = "" if path.is_dir() else path.suffix
    suffix = next((end for end in adapter.model_suffixes if path.name.lower().endswith(end)), other)
    stem = path.name[: len(path.name) - len(suffix)]
    return _BLANK.sub("-", _PART.sub("", stem).strip()) or path.name


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way may not be entered
        return False
