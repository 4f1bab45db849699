"""Searches folders for files, over links but never in circles."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MOST_FOLDERS = 20_000
_UNSPEAKABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and bytes that are no UTF-8


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that was left out, in printable form, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Walked:
    """What a search found: files of the first root first, shallow ones before deep ones, else by name."""

    files: tuple[Path, ...]
    skipped: tuple[Skipped, ...]


def walk(roots: Iterable[Path], suffixes: tuple[str, ...]) -> Walked:
    """Every file under ``roots`` with one of ``suffixes`` (lower case); hidden files and folders are passed over.

    Links to files and folders are followed; a folder that several ways lead to is searched once, by the way without
    a link if there is one. What can't be read is left out with a reason; nothing is raised.
    """
    search = _Search(suffixes)
    for root in roots:
        search.below(root)
    return Walked(tuple(search.files), tuple(search.skipped))


class _Search:
    def __init__(self, suffixes: tuple[str, ...]) -> None:
        self.files: list[Path] = []
        self.skipped: list[Skipped] = []
        self._suffixes = suffixes
        self._seen: set[tuple[int, int]] = set()

    def below(self, root: Path) -> None:
        folders, links = deque([root]), deque[Path]()
        while folders or links:
            if len(self._seen) >= _MOST_FOLDERS:
                self._skip(root, f"more than {_MOST_FOLDERS} folders: name the folders that hold models in model_dirs")
                return
            folder = folders.popleft() if folders else links.popleft()
            try:
                self._look_into(folder, folders, links)
            except OSError as error:
                self._skip(folder, f"can't be read: {error.strerror}")

    def _look_into(self, folder: Path, folders: deque[Path], links: deque[Path]) -> None:
        facts = folder.stat()
        if (facts.st_dev, facts.st_ino) in self._seen:
            return
        self._seen.add((facts.st_dev, facts.st_ino))
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                (links if entry.is_symlink() else folders).append(folder / entry.name)
            elif entry.name.lower().endswith(self._suffixes):
                self._add(folder / entry.name)

    def _add(self, path: Path) -> None:
        if _UNSPEAKABLE.search(str(path)):
            self._skip(path, "its name holds control characters or is not UTF-8: rename it")
        else:
            self.files.append(path)

    def _skip(self, path: Path, reason: str) -> None:
        printable = os.fsencode(path).decode("utf-8", "backslashreplace")
        self.skipped.append(Skipped(_UNSPEAKABLE.sub("?", printable), reason))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or a disk that fails
        return False
