"""Reading a log beside its writer: each line once, whatever is rotated in between."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.processes.log_disk import append_chunks
from supervisor.processes.log_lines import (
    LaunchStart,
    LineWriter,
    Mark,
    continued_text,
    log_path,
    older_path,
    start_text,
)
from supervisor.processes.log_policy import Chunk
from supervisor.processes.log_reader import LogReader, models_with_logs

_WRITER = LineWriter()
_HEAD = _WRITER.render(0, Mark.CONTINUED, continued_text("m", "a1"))
_LIMIT = 400


def _write(path: Path, *texts: str) -> None:
    data = b"".join(_WRITER.render(0, Mark.ENGINE, text) for text in texts)
    assert append_chunks(path, [Chunk(_HEAD, opens=False, data=data)], _LIMIT).error is None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[LogReader]:
    """Of ``m.log``; closed at the end."""
    reader = LogReader(tmp_path / "m.log")
    yield reader
    list(reader.close())


def _new(reader: LogReader) -> list[str]:
    return [line.text for line in reader.new()]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_follower_sees_each_line_once(tmp_path_factory: pytest.TempPathFactory, batches: list[int]) -> None:
    """However many lines and rotations lie between two looks, as long as what it has not seen is still kept."""
    path = tmp_path_factory.mktemp("logs") / "m.log"
    reader, seen, number = LogReader(path), list[str](), 0
    for count in batches:
        texts = [f"{number + index:06d}" for index in range(count)]
        number += count
        if texts:
            _write(path, *texts)
        seen += _new(reader)
    list(reader.close())
    assert seen == [f"{index:06d}" for index in range(number)]


def test_what_was_rotated_away_unseen_is_missing_and_nothing_else(tmp_path: Path, reader: LogReader) -> None:
    """A reader that slept over rotations reads its file to the end, then what is left, and repeats nothing."""
    _write(tmp_path / "m.log", "first")
    assert _new(reader) == ["first"]
    for number in range(100):
        _write(tmp_path / "m.log", f"{number:03d}")
    seen = [int(text) for text in _new(reader)]
    gap = next(place for place in range(1, len(seen)) if seen[place] != seen[place - 1] + 1)
    assert seen == [*range(gap), *range(100 - len(seen) + gap, 100)]
    assert _new(reader) == []


def test_no_file_is_no_line_and_the_first_one_is_found_later(tmp_path: Path, reader: LogReader) -> None:
    """A follower may be there first."""
    assert _new(reader) == []
    _write(tmp_path / "m.log", "one")
    assert _new(reader) == ["one"]


def test_a_crash_between_the_two_steps_of_a_rotation_hides_nothing(tmp_path: Path, reader: LogReader) -> None:
    """Only the older file is there: it is read, and the newer one when it comes."""
    path = tmp_path / "m.log"
    _write(path, "one")
    path.replace(older_path(path))
    assert _new(reader) == ["one"]
    assert _new(reader) == []
    _write(path, "two")
    assert _new(reader) == ["two"]


def test_a_file_under_both_names_is_read_once(tmp_path: Path, reader: LogReader) -> None:
    """Prevents doubled lines, and an endless search for a pair that fits."""
    path = tmp_path / "m.log"
    _write(path, "one")
    older_path(path).hardlink_to(path)
    assert _new(reader) == ["one"]


def test_an_unfinished_line_is_shown_at_the_end(tmp_path: Path) -> None:
    """While it is followed it may still be finished; a torn one is not hidden from who reads once."""
    path = tmp_path / "m.log"
    _write(path, "one")
    with path.open("ab") as stream:
        stream.write(b"tor")
    reader = LogReader(path)
    assert _new(reader) == ["one"]
    assert [line.text for line in reader.close()] == ["tor"]


def test_a_file_that_was_emptied_in_place_is_read_from_its_start(tmp_path: Path, reader: LogReader) -> None:
    """Somebody's ``> m.log`` does not end the following."""
    path = tmp_path / "m.log"
    _write(path, "one", "two")
    assert _new(reader) == ["one", "two"]
    path.write_bytes(b"")
    assert _new(reader) == []
    _write(path, "three")
    assert _new(reader) == ["three"]


def test_models_are_listed_by_their_ids(tmp_path: Path) -> None:
    """From either file, in order; other files are none of them, and no folder is no model."""
    for model in ("b", "A/a", "c"):
        line = _WRITER.render(0, Mark.STARTED, start_text(model, LaunchStart("a1", 1, "cpu", 7)))
        log_path(tmp_path, model).write_bytes(line)
    log_path(tmp_path, "c").replace(older_path(log_path(tmp_path, "c")))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "m.log.short").touch()
    assert models_with_logs(tmp_path) == ["A/a", "b", "c"]
    assert models_with_logs(tmp_path / "none") == []
