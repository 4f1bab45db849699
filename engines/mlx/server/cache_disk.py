"""Prompts and answers that outlive the process: one file each, in a folder of the model as it is now.

A file is named for its tokens, holds them, and is believed only if its caches are exactly those of the model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.mlx.server import layers as caches
from engines.mlx.server.options import Options
from engines.mlx.server.prefixes import Entry, Prefixes

_log = logging.getLogger(__name__)
_LARGEST_HEAD = 100 * 2**20
_SUFFIX = ".safetensors"
_PART = ".part" + _SUFFIX

Save = Callable[[str, Sequence[Any], Mapping[str, str]], None]
Load = Callable[[str], Sequence[Any]]


@dataclass(slots=True)
class DiskStats:
    """What has happened since the start."""

    saved: int = 0
    loaded: int = 0
    refused: int = 0


class DiskCache:
    """The files of one model.

    Args:
        folder: of this alias and this fingerprint; made when it is needed. Folders beside it are of other fingerprints.
        budget: bytes that may lie there.
        layout: fresh caches of the model.
        save, load: of ``mlx_lm.models.cache``.
    """

    def __init__(self, folder: Path, budget: int, layout: Sequence[Any], save: Save, load: Load) -> None:
        self.stats = DiskStats()
        self._folder = folder
        self._budget = budget
        self._layout = layout
        self._save = save
        self._load = load

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in self._files())

    def restore(self, prefixes: Prefixes) -> int:
        """Make entries of the files that there are, oldest first, and remove what other fingerprints have left."""
        self._remove_others()
        found = 0
        for path in sorted(self._files(), key=lambda path: path.stat().st_mtime):
            head = _read_head(path)
            if head is None:
                path.unlink(missing_ok=True)
                continue
            tokens, cuttable = head
            prefixes.put(Entry(tokens, None, path.stat().st_size, cuttable, path))
            found += 1
        return found

    def fetch(self, entry: Entry, prefixes: Prefixes) -> bool:
        """Bring an entry's caches into memory; False: its file is no good, and the entry is gone."""
        try:
            layers = list(self._load(str(entry.place)))
        except Exception as error:  # noqa: BLE001  a file may hold anything
            _log.warning("%s can't be used: %s", entry.place.name, error)
            layers = []
        held = caches.cached_prefix(layers, entry.tokens) if layers else None
        if held != entry.tokens or not caches.matches_layout(layers, self._layout):
            self.stats.refused += 1
            prefixes.drop(entry)
            entry.place.unlink(missing_ok=True)
            return False
        self.stats.loaded += 1
        prefixes.loaded(entry, layers, caches.size_of(layers))
        return True

    def flush(self, prefixes: Prefixes, seconds: float) -> int:
        """Save what is not yet, the most recently used first, as far as time and room go; remove the rest.

        Returns:
            The number of entries that were saved.
        """
        deadline = time.monotonic() + seconds
        room, saved = self._budget, 0
        kept: set[Path] = set()
        for entry in prefixes:
            if entry.size > room:
                continue
            if entry.place is None:
                if time.monotonic() > deadline or not self._write(entry):
                    continue
                saved += 1
            kept.add(entry.place)
            room -= entry.size
        for path in self._files():
            if path not in kept:
                path.unlink(missing_ok=True)
        return saved

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, entry: Entry) -> bool:
        name = hashlib.sha256(json.dumps(entry.tokens).encode()).hexdigest()[:32]
        path, part = self._folder / f"{name}{_SUFFIX}", self._folder / f"{name}{_PART}"
        about = {"tokens": json.dumps(entry.tokens), "cuttable": str(int(entry.cuttable))}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._save(str(part), entry.layers, about)
            part.replace(path)
        except Exception as error:  # noqa: BLE001  a full disk costs what would have been saved, and no more
            _log.warning("a prompt could not be saved: %s", error)
            part.unlink(missing_ok=True)
            return False
        entry.place = path
        self.stats.saved += 1
        return True

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.glob(f"*{_SUFFIX}") if not path.name.endswith(_PART)]

    def _remove_others(self) -> None:
        if not self._folder.parent.is_dir():
            return
        for other in self._folder.parent.iterdir():
            if other != self._folder and other.is_dir():
                shutil.rmtree(other, ignore_errors=True)
        for part in self._folder.glob(f"*{_PART}"):
            part.unlink(missing_ok=True)


def fingerprint(options: Options, versions: Mapping[str, str]) -> str:
    """A name for the model as it is, and for how its caches are computed: other files or settings give another."""
    whole = hashlib.sha256()
    for path in sorted(options.model.iterdir()):
        if path.suffix in {".json", ".safetensors", ".model", ".jinja"}:
            facts = path.stat()
            whole.update(f"{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    settings = [options.kv_bits, options.kv_group_size, options.max_kv_size, versions.get("mlx-lm")]
    whole.update(json.dumps(settings).encode())
    return whole.hexdigest()[:24]


def cache_folder(options: Options, mark: str) -> Path | None:
    """The folder of this model's files; None: nothing is kept."""
    if options.cache_dir is None or options.cache_disk_bytes <= 0 or options.cache_bytes <= 0:
        return None
    alias = hashlib.sha256(options.alias.encode()).hexdigest()[:16]
    return options.cache_dir / f"mlx-{alias}" / mark


def _read_head(path: Path) -> tuple[tuple[int, ...], bool] | None:
    """Tokens of a file, and whether they can be cut back; None: it is none of ours, or damaged."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _LARGEST_HEAD:
                return None
            about = json.loads(stream.read(length))["__metadata__"]
        tokens = json.loads(about["0.tokens"])
        if not tokens or not all(isinstance(token, int) for token in tokens):
            return None
        return tuple(tokens), about["0.cuttable"] == "1"
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError):
        return None
