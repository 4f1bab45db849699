"""Writing and rotating on a real disk: bounds, modes, and what is in the way."""

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.processes.log_disk import append_chunks
from supervisor.processes.log_lines import older_path
from supervisor.processes.log_policy import Chunk

_LIMIT = 200
_HEAD = b"+ head\n"
_batches = st.lists(st.lists(st.integers(0, 80), max_size=12), max_size=12)


def _chunk(*lines: bytes) -> Chunk:
    return Chunk(_HEAD, opens=False, data=b"".join(line + b"\n" for line in lines))


def _kept(path: Path) -> list[bytes]:
    files = [file.read_bytes() for file in (older_path(path), path) if file.exists()]
    return [line for line in b"".join(files).split(b"\n")[:-1] if line + b"\n" != _HEAD]


@given(_batches)
def test_whatever_comes_the_last_lines_are_there_and_the_total_is_bounded(batches: list[list[int]]) -> None:
    """Both files together stay within twice a file's bound; what is kept is the end of what came, without a gap."""
    numbered: list[bytes] = []
    with TemporaryDirectory() as name:
        path = Path(name) / "logs" / "m.log"
        for lengths in batches:
            lines = [b"%d %s" % (len(numbered) + index, b"x" * length) for index, length in enumerate(lengths)]
            numbered += lines
            if lines:
                outcome = append_chunks(path, [_chunk(*lines)], _LIMIT)
                assert (outcome.lines, outcome.error) == (len(lines), None)
            sizes = [file.stat().st_size for file in (older_path(path), path) if file.exists()]
            assert sum(sizes) <= 2 * _LIMIT
        kept = _kept(path)
    assert kept == numbered[len(numbered) - len(kept) :]
    total = sum(len(line) + 1 for line in numbered)
    # A file is left when the next line does not fit: at least one file less a longest line is always kept.
    assert sum(len(line) + 1 for line in kept) >= min(total, _LIMIT - len(_HEAD) - 90)


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    """The folder is 0700 and the files are 0600, also where they were not, whatever the umask."""
    path = tmp_path / "logs" / "m.log"
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    before = os.umask(0)
    try:
        append_chunks(path, [_chunk(b"x" * 60)], _LIMIT)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for _ in range(9):
            append_chunks(path, [_chunk(b"x" * 60)], _LIMIT)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (path.parent, path, older_path(path))]
    assert modes == [0o700, 0o600, 0o600]


def test_files_of_a_greater_bound_are_cut_to_their_end(tmp_path: Path) -> None:
    """Prevents a bound that was made smaller from holding only after two rotations."""
    path = tmp_path / "m.log"
    for file in (path, older_path(path)):
        file.write_bytes(b"".join(b"%05d\n" % number for number in range(500)))
    append_chunks(path, [_chunk(b"new")], _LIMIT)
    assert path.stat().st_size + older_path(path).stat().st_size <= 2 * _LIMIT
    assert _kept(path)[-2:] == [b"00499", b"new"]
    assert {len(line) for line in _kept(path)} <= {5, 3}
    assert not list(tmp_path.glob("*.short"))


def test_an_older_file_of_a_greater_bound_is_cut_before_the_next_rotation(tmp_path: Path) -> None:
    """Prevents the total from being out of bounds for as long as the newer file is not full."""
    path = tmp_path / "m.log"
    older_path(path).write_bytes(b"".join(b"%05d\n" % number for number in range(500)))
    append_chunks(path, [_chunk(b"new")], _LIMIT)
    assert older_path(path).stat().st_size <= _LIMIT
    assert _kept(path)[-2:] == [b"00499", b"new"]


def test_a_torn_line_ends_where_the_next_begins(tmp_path: Path) -> None:
    """Prevents a line that the power cut from swallowing the next one."""
    path = tmp_path / "m.log"
    path.write_bytes(b"whole\nto")
    append_chunks(path, [_chunk(b"next")], _LIMIT)
    assert path.read_bytes() == b"whole\nto\nnext\n"


@contextmanager
def _full_at(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size``: as on a full disk, the last write is done in part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """What could be written in part only is taken back, counted as not written, and the next time all is well."""
    path = tmp_path / "m.log"
    append_chunks(path, [_chunk(b"one")], _LIMIT)
    with _full_at(20):
        outcome = append_chunks(path, [_chunk(b"x" * 50), _chunk(b"y")], _LIMIT)
    assert outcome.error is not None
    assert (outcome.lines, outcome.error.errno) == (0, errno.EFBIG)
    assert path.read_bytes() == _HEAD + b"one\n"
    assert append_chunks(path, [_chunk(b"two")], _LIMIT).error is None
    assert _kept(path) == [b"one", b"two"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Prevents a link in the folder from making the daemon write elsewhere."""
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / "m.log").symlink_to(target)
    outcome = append_chunks(tmp_path / "m.log", [_chunk(b"x")], _LIMIT)
    assert outcome.error is not None
    assert target.read_bytes() == b"mine"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Prevents the writing thread from hanging, and log lines from filling a pipe that somebody left there."""
    os.mkfifo(tmp_path / "m.log")
    outcome = append_chunks(tmp_path / "m.log", [_chunk(b"x")], _LIMIT)
    assert outcome.error is not None


@pytest.mark.parametrize("in_the_way", ["file", "no parent", "folder as file"])
def test_what_is_in_the_way_is_an_outcome(tmp_path: Path, in_the_way: str) -> None:
    """A file for the folder, no state folder, a folder for the file: told, not raised, and no descriptor stays."""
    folder = tmp_path / "logs"
    if in_the_way == "file":
        folder.touch()
    elif in_the_way == "no parent":
        folder = tmp_path / "gone" / "logs"
    else:
        (folder / "m.log").mkdir(parents=True)
    before = len(list(Path("/dev/fd").iterdir()))
    assert append_chunks(folder / "m.log", [_chunk(b"x")], _LIMIT).error is not None
    assert len(list(Path("/dev/fd").iterdir())) == before
