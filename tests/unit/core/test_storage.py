"""The state folder: locked by one, and never half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.errors import ConfigError
from supervisor.storage import JsonFile, StateLock, make_private_folder


def test_the_second_one_hears_who_holds_the_folder(tmp_path: Path) -> None:
    """A locked folder is refused with the holder's pid; once released it can be taken again."""
    lock = StateLock.take(tmp_path / "state")
    with pytest.raises(ConfigError) as caught:
        StateLock.take(tmp_path / "state")
    assert caught.value.code == "state_dir_locked"
    assert str(os.getpid()) in caught.value.message
    lock.release()
    lock.release()
    StateLock.take(tmp_path / "state").release()


def test_a_file_is_no_state_folder(tmp_path: Path) -> None:
    """A path that is a file is refused with what to do."""
    (tmp_path / "state").write_text("x")
    with pytest.raises(ConfigError, match="Name another folder") as caught:
        StateLock.take(tmp_path / "state")
    assert caught.value.code == "state_dir_unusable"


def test_a_new_state_folder_is_private(tmp_path: Path) -> None:
    """What is kept is nobody else's business."""
    StateLock.take(tmp_path / "a" / "state").release()
    assert (tmp_path / "a" / "state").stat().st_mode & 0o777 == 0o700


def test_a_document_is_read_back(tmp_path: Path) -> None:
    """What was written is there, with its schema; an absent file is no error."""
    file = JsonFile(tmp_path / "x.json", 3)
    assert file.read() == (None, None)
    file.write({"a": 1})
    assert file.read() == ({"schema": 3, "a": 1}, None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 2}', b"\xff\xfe"])
def test_a_file_that_can_not_be_used_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """Junk, another shape and another version read as absent with a reason, and are kept for the owner."""
    file = JsonFile(tmp_path / "x.json", 3)
    file.path.write_bytes(content)
    document, reason = file.read()
    assert document is None
    assert reason
    assert file.set_aside() == tmp_path / "x.json.bad"
    assert (tmp_path / "x.json.bad").read_bytes() == content


def test_a_failed_write_leaves_the_old_document(tmp_path: Path) -> None:
    """What can't be encoded replaces nothing and leaves no temporary file."""
    file = JsonFile(tmp_path / "x.json", 1)
    file.write({"a": 1})
    with pytest.raises(TypeError):
        file.write({"a": object()})
    assert file.read()[0] == {"schema": 1, "a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_runtime_folder_is_made_private(tmp_path: Path) -> None:
    """Sockets lie in a folder that only this user can enter, also when it was there before and open."""
    (tmp_path / "run").mkdir(mode=0o755)
    make_private_folder(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        make_private_folder(tmp_path / "file")
    assert caught.value.code == "runtime_dir_unusable"
