"""The form of a log file: names for any model, lines that nobody can forge."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor.processes.log_lines import (
    MAX_TEXT_BYTES,
    LaunchEnd,
    LaunchStart,
    LineWriter,
    Mark,
    continued_text,
    end_text,
    log_path,
    model_of,
    older_path,
    parse_line,
    start_text,
)

# All that can stand in a name, lone surrogates too, with those that file systems fold more often.
_ids = st.text(st.one_of(st.sampled_from("aAbBäÄ./~_-\0\nß\u017fs\u0301e\u00e9"), st.characters()), max_size=200)
_FOLDER = Path("/logs")


def _as_a_file_system_might_see_it(path: Path) -> str:
    return unicodedata.normalize("NFKC", path.name.casefold())


@given(_ids)
def test_any_model_has_a_name_that_any_file_system_takes(model: str) -> None:
    """One part of a path, not hidden, within 255 bytes with what is added when it is rotated."""
    name = older_path(log_path(_FOLDER, model)).name
    assert log_path(_FOLDER, model).parent == _FOLDER
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name.encode()) < 200


@given(_ids, _ids)
def test_two_models_never_share_a_file(one: str, other: str) -> None:
    """Also where the file system folds case or normal forms; nor is one's newer file another's older one."""
    assume(one != other)
    mine, theirs = log_path(_FOLDER, one), log_path(_FOLDER, other)
    assert _as_a_file_system_might_see_it(mine) != _as_a_file_system_might_see_it(theirs)
    assert older_path(mine).name != theirs.name


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("qwen3-8b", "qwen3-8b.log"),
        ("a.b_c", "a.b_c.log"),
        ("Qwen/Qwen3-8B", "Qwen_Qwen3-8B~"),
        ("../../etc/passwd", "_.._etc_passwd~"),
        ("通义千问", "通义千问~"),
        ("", "~"),
        ("x" * 300, "x" * 80 + "~"),
    ],
)
def test_names_can_be_read(model: str, start: str) -> None:
    """A folder's listing says which file is whose; plain names are left as they are."""
    assert log_path(_FOLDER, model).name.startswith(start)


@pytest.mark.parametrize("model", ["plain", "Qwen/Qwen3-8B", 'a "quoted" \\ one\n', "通义千问", "x" * 300, "\ud800"])
def test_a_file_says_whose_it_is(tmp_path: Path, model: str) -> None:
    """The first line names the model, whichever of the two kinds it is; also of the older file where only that is."""
    writer = LineWriter()
    path = log_path(tmp_path, model)
    path.write_bytes(writer.render(0, Mark.STARTED, start_text(model, LaunchStart("a1", 1, "cpu", 7))))
    assert model_of(path) == model
    older_path(path).write_bytes(writer.render(0, Mark.CONTINUED, continued_text(model, None)))
    path.unlink()
    assert model_of(path) == model


@pytest.mark.parametrize(
    "content", [b"", b"noise", b"\xff\xfe", b'2024-01-01T00:00:00.000Z > launch a of "other": x\n']
)
def test_a_file_that_does_not_know_is_called_by_its_name(tmp_path: Path, content: bytes) -> None:
    """Damage, or a file that was copied under another name, hides no log."""
    path = tmp_path / "m~1.log"
    path.write_bytes(content)
    assert model_of(path) == "m~1"


@given(st.floats(0, 4e9), st.sampled_from(list(Mark)), st.text(max_size=300))
def test_a_line_comes_back_as_it_was_written(at: float, mark: Mark, text: str) -> None:
    """To the millisecond; what would end the line or move a cursor is changed, and nothing else."""
    raw = LineWriter().render(at, mark, text)
    assert raw.count(b"\n") == 1
    assert len(raw.decode().splitlines()) == 1
    line = parse_line(raw.decode()[:-1])
    assert line.at == pytest.approx(at, abs=0.0011)
    assert line.mark is mark
    assert len(line.text) == len(text)
    if text.isprintable():
        assert line.text == text


def test_the_stamp_is_wall_time_in_utc() -> None:
    """One form for all machines, sortable, and the second's memory does not outlive the second."""
    writer = LineWriter()
    stamps = [writer.render(at, Mark.ENGINE, "x").split()[0] for at in (0.25, 0.5, 1.0, 0.125)]
    assert stamps == [
        b"1970-01-01T00:00:00.250Z",
        b"1970-01-01T00:00:00.500Z",
        b"1970-01-01T00:00:01.000Z",
        b"1970-01-01T00:00:00.125Z",
    ]


def test_an_engine_can_not_write_a_line_of_ours() -> None:
    """Prevents a prompt in a log line from posing as a launch's end."""
    ours = LineWriter().render(0, Mark.ENDED, end_text(LaunchEnd("a1", "ready", 0, None, "UNKNOWN"))).decode()
    line = parse_line(LineWriter().render(0, Mark.ENGINE, "x\n" + ours).decode().rstrip("\n"))
    assert line.mark is Mark.ENGINE
    assert line.launch is None
    assert ours.strip() in line.text


def test_a_long_line_is_cut_at_a_character_and_says_so() -> None:
    """Prevents one line from filling a file."""
    raw = LineWriter().render(0, Mark.ENGINE, "x" + "é" * MAX_TEXT_BYTES)
    assert raw.endswith(" … [8194 bytes cut]\n".encode())
    assert raw.decode().count("é") == (MAX_TEXT_BYTES - 1) // 2


@pytest.mark.parametrize("line", ["", "noise", "2024-02-31T00:00:00.000Z | x", "2024-01-01T00:00:00.000Z ! x"])
def test_a_damaged_line_is_shown_as_it_is(line: str) -> None:
    """Its time is not known, and it is nobody's but the engine's."""
    parsed = parse_line(line)
    assert (parsed.at, parsed.mark, parsed.text) == (None, Mark.ENGINE, line)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (LaunchEnd("a1", "ready", None, 11, "CRASH"), "launch a1 ended while ready: signal 11, CRASH"),
        (LaunchEnd("a1", "stopping", 0, None, "UNKNOWN"), "launch a1 ended while stopping: exit code 0, UNKNOWN"),
        (LaunchEnd("a1", "starting", None, None, "X"), "launch a1 ended while starting: no exit code, X"),
    ],
)
def test_the_last_line_says_how_it_ended(end: LaunchEnd, text: str) -> None:
    """Phase, code or signal, and kind; not known is not 0."""
    assert end_text(end) == text


def test_the_first_line_says_what_was_started() -> None:
    """Launch, model, generation, build and pid, or that there was no process."""
    assert start_text("m", LaunchStart("a1", 3, "cuda", 77)) == 'launch a1 of "m": generation 3, build cuda, pid 77'
    assert start_text("m", LaunchStart("a1", 3, "cuda", None)).endswith("no process")
