"""Files that can't be started are told apart before trying."""

import errno
import struct
import sys
from pathlib import Path

import pytest

from supervisor.processes.executable import SpawnFailed, check_executable

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the format is looked at on Linux")


def _file(folder: Path, content: bytes, mode: int = 0o755) -> Path:
    path = folder / "engine"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def _failure(path: Path) -> SpawnFailed:
    with pytest.raises(SpawnFailed) as caught:
        check_executable(path)
    assert caught.value.code == "start_failed"
    assert str(path) in caught.value.message
    return caught.value


def test_a_real_program_and_a_script_pass(tmp_path: Path) -> None:
    """The running Python, and a script whose interpreter is there, can be started."""
    check_executable(Path(sys.executable))
    check_executable(_file(tmp_path, b"#!/bin/sh\nexit 0\n"))


def test_what_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    """Missing, relative, a folder: each has its own errno and words."""
    assert _failure(tmp_path / "none").errno == errno.ENOENT
    assert _failure(Path("engine")).errno == errno.ENOENT
    assert _failure(tmp_path).errno == errno.EACCES


def test_a_file_without_the_right_to_execute_is_refused(tmp_path: Path) -> None:
    """The text says what to do."""
    failure = _failure(_file(tmp_path, b"#!/bin/sh\n", 0o644))
    assert failure.errno == errno.EACCES
    assert "chmod" in failure.text


@linux_only
def test_a_script_whose_interpreter_is_gone_is_refused(tmp_path: Path) -> None:
    """The kernel would say "no such file" of a file that is there: we name the interpreter."""
    failure = _failure(_file(tmp_path, b"#!/no/such/python3 -u\n"))
    assert failure.errno == errno.ENOENT
    assert "/no/such/python3" in failure.text


@linux_only
@pytest.mark.parametrize("content", [b"", b"just text\n", b"<html>404 Not Found</html>", b"\x7fELF\x02\x01\x01"])
def test_what_is_no_program_is_refused(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents setpriv's exec from running a text file or a download's error page as a shell script."""
    monkeypatch.setattr("supervisor.processes.executable._OTHER_FORMATS", tmp_path / "none")
    assert _failure(_file(tmp_path, content)).errno == errno.ENOEXEC


@linux_only
def test_a_program_for_another_processor_or_c_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ELF file of another machine is ENOEXEC; one whose loader is missing names the loader."""
    monkeypatch.setattr("supervisor.processes.executable._OTHER_FORMATS", tmp_path / "none")
    ours = Path("/proc/self/exe").read_bytes()[:64]
    foreign = ours[:18] + struct.pack("<H", 0xF3 if ours[18] != 0xF3 else 0x3E) + ours[20:]
    assert _failure(_file(tmp_path, foreign)).errno == errno.ENOEXEC
    loader = b"/no/such/ld-musl.so.1\0"
    header = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader), len(loader), 1)
    musl = ours[:32] + struct.pack("<Q", 64) + ours[40:54] + struct.pack("<HH", 56, 1) + ours[58:64] + header + loader
    failure = _failure(_file(tmp_path, musl))
    assert failure.errno == errno.ENOENT
    assert "ld-musl" in failure.text
