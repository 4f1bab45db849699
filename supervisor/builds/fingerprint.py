"""What a build is: the hash of its executable and of every library beside it, so that new bytes are a new build."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from supervisor.builds.cache import Cache
from supervisor.errors import PlanError
from supervisor.events import EventBus
from supervisor.storage import JsonFile

SCHEMA = 1
_KEEP_FILES = 4096
# Libraries of the system belong to no build, and there are thousands of them.
_SYSTEM_FOLDERS = frozenset({"/lib", "/lib64", "/usr/lib", "/usr/lib64"})
_LIBRARY_ENDINGS = (".so", ".dylib", ".dll")


@dataclass(frozen=True, slots=True)
class _Part:
    """One file of a build; equal ``signature`` means equal bytes."""

    label: str
    path: Path
    identity: tuple[int, int]
    signature: tuple[int, ...]


class Fingerprints:
    """Fingerprints of builds; a file is hashed again only when its inode, size or times changed."""

    def __init__(self, cache: JsonFile | None, bus: EventBus) -> None:
        self._cache = Cache(cache, bus, _KEEP_FILES)
        self._lock = anyio.Lock()

    async def of(self, executable: Path, more: Sequence[Path] = ()) -> str:
        """SHA-256 in hex over the executable, the libraries beside it and ``more``; hashed in a worker thread.

        Raises:
            PlanError: ``build_unusable``: one of the files can't be read.
        """
        await self._cache.load()
        # One at a time: a second caller finds the first one's work done, and the disk is read in order.
        async with self._lock:
            try:
                parts = await anyio.to_thread.run_sync(_parts, executable, more, abandon_on_cancel=True)
                known = {part.path: digest for part in parts if (digest := self._known(part)) is not None}
                work = [part for part in parts if part.path not in known]
                hashed = await anyio.to_thread.run_sync(_hash_parts, work, abandon_on_cancel=True) if work else []
            except OSError as error:
                raise PlanError(
                    "build_unusable",
                    f"{error.filename or executable} can't be read ({error.strerror}): make it readable for the "
                    "user that the daemon runs as.",
                    executable=str(executable),
                ) from error
            if settled := {str(part.path): _entry(part, digest) for part, digest, calm in hashed if calm}:
                await self._cache.put(settled)
        return _combine(parts, {**known, **{part.path: digest for part, digest, _calm in hashed}})

    def _known(self, part: _Part) -> str | None:
        entry = self._cache.get(str(part.path))
        if not isinstance(entry, dict) or entry.get("signature") != list(part.signature):
            return None
        digest = entry.get("sha256")
        return digest if isinstance(digest, str) else None


def _entry(part: _Part, digest: str) -> dict[str, Any]:
    return {"signature": list(part.signature), "sha256": digest}


def _parts(executable: Path, more: Sequence[Path]) -> list[_Part]:
    """The executable first, libraries by name, then the rest; several names of one file count once, by the first."""
    real = Path(os.path.realpath(executable))
    # The executable's own name says nothing about its bytes; a library's name is what the loader looks for.
    parts = [_part("executable", real)]
    seen = {parts[0].identity}
    libraries = sorted(_libraries(real.parent), key=lambda path: (path.name, str(path)))
    for path in (*libraries, *more):
        try:
            part = _part(path.name, path)
        except FileNotFoundError:
            continue  # a dangling link
        if part.identity not in seen:
            seen.add(part.identity)
            parts.append(part)
    return parts


def _part(label: str, path: Path) -> _Part:
    facts = path.stat()
    # The change time catches tools that put the old modification time back. The device number is left out: it
    # changes with each mount.
    signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return _Part(label, path, (facts.st_dev, facts.st_ino), signature)


def _libraries(folder: Path) -> Iterator[Path]:
    for place in (folder, folder / "lib", folder.parent / "lib"):
        if str(place) in _SYSTEM_FOLDERS:
            continue
        try:
            entries = list(place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (entry for entry in entries if _is_library(entry.name) and entry.is_file())


def _is_library(name: str) -> bool:
    return name.endswith(_LIBRARY_ENDINGS) or ".so." in name


def _hash_parts(parts: Iterable[_Part]) -> list[tuple[_Part, str, bool]]:
    """Each part, its digest, and whether the file stayed as it was: only then the digest may be remembered."""
    hashed = []
    for part in parts:
        with part.path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        hashed.append((part, digest, _part(part.label, part.path) == part))
    return hashed


def _combine(parts: Iterable[_Part], digests: Mapping[Path, str]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{part.label}\0{digests[part.path]}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()
