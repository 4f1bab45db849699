"""Models cut into several GGUF files, named ``NAME-00001-of-00003.gguf`` as llama.cpp's own splitter does."""

from __future__ import annotations

import re
from pathlib import Path

from engines.contract import ModelFileError

_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_NAMED_MISSING = 3


def split_files(path: Path) -> tuple[Path, ...] | None:
    """All parts of the model that ``path`` begins, in order; None if it is a later part of a model that is here.

    Raises:
        ModelFileError: a part is missing; for a later part: the first one is, so that nothing else would say so.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        return (path,)
    first = _part(path, match, 1, count)
    if number > 1:
        if not _is_there(first):
            raise ModelFileError(f"{path.name} needs {first.name}, which is not beside it. Fetch that part.")
        return None
    parts = tuple(_part(path, match, index, count) for index in range(1, count + 1))
    missing = [part.name for part in parts if not _is_there(part)]
    if missing:
        more = f" and {len(missing) - _NAMED_MISSING} more" if len(missing) > _NAMED_MISSING else ""
        raise ModelFileError(
            f"{path.name} is part 1 of {count}; not there: {', '.join(missing[:_NAMED_MISSING])}{more}. "
            "Fetch all parts into one folder."
        )
    return parts


def _part(path: Path, match: re.Match[str], number: int, count: int) -> Path:
    return path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}{match['suffix']}")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way may not be entered
        return False
