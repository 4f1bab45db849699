"""`enginehouse classify FILE…`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli.classify import classify_files

_RECORD = {
    "engine": "llama.cpp",
    "argv_hint": ["/opt/llama/llama-server"],
    "exit": {"code": None, "signal": "SIGILL"},
    "reached_ready": False,
    "log": [],
}


def _write(folder: Path, name: str, document: object) -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def test_json_output_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One entry an exit, in the order of the files, with the four fields and nothing on stderr."""
    first = _write(tmp_path, "a.json", _RECORD)
    second = _write(tmp_path, "b.json", _RECORD | {"exit": {"code": 0, "signal": None}, "asked_to_stop": True})
    assert classify_files([first, second], json_output=True) == 0
    out = capsys.readouterr()
    assert out.err == ""
    verdicts = json.loads(out.out)
    assert [set(verdict) for verdict in verdicts] == [{"kind", "blames", "runs_here", "why"}] * 2
    assert verdicts[0]["kind"] == "INCOMPATIBLE_CPU"
    assert verdicts[0]["runs_here"] == "no"
    assert verdicts[1]["kind"] == "KILLED"


def test_several_exits_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list, or one object a line."""
    one = _write(tmp_path, "list.json", [_RECORD, _RECORD])
    two = _write(tmp_path, "lines.jsonl", f"{json.dumps(_RECORD)}\n{json.dumps(_RECORD)}\n")
    assert classify_files([one, two], json_output=True) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_text_output_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people: file, kind, blame and the sentence."""
    path = _write(tmp_path, "a.json", _RECORD)
    assert classify_files([path], json_output=False) == 0
    out = capsys.readouterr().out
    assert str(path) in out
    assert "INCOMPATIBLE_CPU, blames build, runs here: no" in out


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ('"text"', "is a JSON object"),
        (_RECORD | {"engine": None}, "engine is missing"),
        (_RECORD | {"engine": 7}, "engine must be a text"),
        ({"engine": "llama.cpp"}, "exit is missing"),
        (_RECORD | {"exit": "SIGILL"}, "exit must be an object"),
        (_RECORD | {"exit": {"code": "one", "signal": None}}, "code must be a whole number"),
        (_RECORD | {"exit": {"code": True, "signal": None}}, "code must be a whole number"),
        (_RECORD | {"exit": {"code": None, "signal": "SIGNOPE"}}, "signal is no signal"),
        (_RECORD | {"log": "text"}, "log must be a list of texts"),
        (_RECORD | {"log": [1]}, "log must be a list of texts"),
        (_RECORD | {"reached_ready": "yes"}, "reached_ready must be true or false"),
        (_RECORD | {"env_hint": {"A": 1}}, "env_hint must be an object of texts"),
        (_RECORD | {"spawn_error": "ENOENT"}, "spawn_error must be an object"),
    ],
)
def test_a_malformed_file_is_answered_clearly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: object, message: str
) -> None:
    """Exit 2, the file and the field on stderr, nothing on stdout, even beside a good file."""
    bad = _write(tmp_path, "bad.json", document)
    good = _write(tmp_path, "good.json", _RECORD)
    assert classify_files([good, bad], json_output=True) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "bad.json" in out.err
    assert message in out.err


def test_a_missing_or_binary_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No trace back for what people mistype."""
    binary = tmp_path / "core"
    binary.write_bytes(b"\xff\xfe\x00")
    assert classify_files([tmp_path / "none.json", binary, tmp_path], json_output=False) == 2
    err = capsys.readouterr().err
    assert "none.json: can't be read" in err
    assert "core: is not UTF-8" in err


def test_no_file_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and what to do."""
    assert classify_files([], json_output=True) == 2
    assert "at least one file" in capsys.readouterr().err


def test_a_failed_start_by_the_name_of_its_errno(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of another system are understood by their text."""
    for name, kind in (("ENOEXEC", "INCOMPATIBLE_CPU"), ("EBADARCH", "INCOMPATIBLE_CPU"), ("EACCES", "UNKNOWN")):
        record = _RECORD | {"exit": {"code": None, "signal": None}, "spawn_error": {"errno": name}}
        assert classify_files([_write(tmp_path, "s.json", record)], json_output=True) == 0
        assert json.loads(capsys.readouterr().out)[0]["kind"] == kind
