"""What a file of a conversation is good for: this model's bytes, this build, these settings."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

# Of each end of a file: a header tells most models apart, and the end of the tensors those that were changed.
_ENDS = 2**16
_PARTING = re.compile(r"[,:=]")


def model_key(words: Sequence[str], files: Sequence[Path], started: float) -> str | None:
    """A hash of ``words`` and of the identity of ``files``; None: a file can't be read, or changed after ``started``.

    Files are told by size, time of change and both ends: reading all of a model takes as long as loading it. Words that
    hold paths of files, such as adapters with their scales, are told alike.

    Args:
        words: from the adapter.
        files: the model's.
        started: wall seconds at which the engine had not opened them yet.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr(tuple(words)).encode())
    for path in (*files, *_named(words)):
        try:
            with path.open("rb") as stream:
                facts = os.fstat(stream.fileno())
                if max(facts.st_mtime, facts.st_ctime) > started:
                    return None
                digest.update(repr((path.name, facts.st_size, facts.st_mtime_ns)).encode())
                digest.update(stream.read(_ENDS))
                stream.seek(max(0, facts.st_size - _ENDS))
                digest.update(stream.read(_ENDS))
        except OSError:
            return None
    return digest.hexdigest()


def _named(words: Sequence[str]) -> list[Path]:
    """Files of which ``words`` are paths, or lists of paths with something beside each (``A.gguf:0.5,B.gguf:1``)."""
    pieces = [piece for word in words for piece in dict.fromkeys((word, *_PARTING.split(word)))]
    return [Path(piece) for piece in pieces if os.path.isabs(piece) and os.path.isfile(piece)]  # noqa: PTH117, PTH113  quick, and most are none
