"""Prompts and answers that were computed, by their tokens: the longest beginning of a new prompt is used again.

Knows nothing of MLX: what is kept is handed in with its size. Least recently used ones go first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_EVICT_TO = 0.8
# Shorter beginnings cost less to compute than to look after.
LEAST_TOKENS = 8


@dataclass(slots=True, eq=False)
class Entry:
    """What was computed for ``tokens``, all of them.

    Attributes:
        layers: the caches, or None while they lie on disk alone.
        size: bytes.
        cuttable: it can be cut back to fewer tokens.
        place: its file, once saved.
    """

    tokens: tuple[int, ...]
    layers: Any
    size: int
    cuttable: bool
    place: Any = None


@dataclass(frozen=True, slots=True)
class Match:
    """An entry that begins like a prompt, and how many tokens of it can be used."""

    entry: Entry
    length: int


@dataclass(slots=True)
class Stats:
    """What has happened since the start."""

    hits: int = 0
    misses: int = 0
    refused: int = 0
    evicted: int = 0
    reused_tokens: int = 0


@dataclass(slots=True)
class Prefixes:
    """The entries, the most recently used one last.

    Attributes:
        budget: bytes that may be kept in memory; 0: nothing is kept.
    """

    budget: int
    stats: Stats = field(default_factory=Stats)
    _entries: dict[tuple[int, ...], Entry] = field(default_factory=dict)
    _size: int = 0

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Entries, the most recently used one first."""
        return iter(list(reversed(self._entries.values())))

    def find(self, tokens: Sequence[int]) -> Match | None:
        """The entry of which most can be used for a prompt; at least one token of the prompt is left to compute."""
        prompt = tuple(tokens)
        best: Match | None = None
        for entry in self:
            common = common_length(entry.tokens, prompt)
            usable = min(common, len(prompt) - 1)
            if usable < len(entry.tokens) and not entry.cuttable:
                continue
            if usable >= LEAST_TOKENS and (best is None or usable > best.length):
                best = Match(entry, usable)
        if best is not None:
            self.touch(best.entry)
        return best

    def touch(self, entry: Entry) -> None:
        """It was used just now."""
        if self._entries.pop(entry.tokens, None) is not None:
            self._entries[entry.tokens] = entry

    def put(self, entry: Entry) -> None:
        """Keep an entry; those that it covers go, and the least recently used ones until the rest fits."""
        if self.budget <= 0 or entry.size > self.budget or len(entry.tokens) < LEAST_TOKENS:
            return
        if entry.cuttable:
            for other in list(self._entries.values()):
                if len(other.tokens) <= len(entry.tokens) and entry.tokens[: len(other.tokens)] == other.tokens:
                    self.drop(other)
        elif (same := self._entries.get(entry.tokens)) is not None:
            self.drop(same)
        self._entries[entry.tokens] = entry
        self._size += entry.size if entry.layers is not None else 0
        self._evict()

    def loaded(self, entry: Entry, layers: Any, size: int) -> None:
        """An entry of the disk is in memory now."""
        entry.layers, entry.size = layers, size
        self._size += size
        self._evict(keep=entry)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        if self._entries.pop(entry.tokens, None) is not None and entry.layers is not None:
            self._size -= entry.size

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._size = 0

    def _evict(self, keep: Entry | None = None) -> None:
        if self._size <= self.budget:
            return
        for entry in list(self._entries.values()):
            if self._size <= self.budget * _EVICT_TO:
                return
            if entry is keep or entry.layers is None:
                continue
            self.stats.evicted += 1
            if entry.place is not None:
                entry.layers = None
                self._size -= entry.size
            else:
                self.drop(entry)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin; compares by halves, at the speed of the interpreter's own comparison."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
