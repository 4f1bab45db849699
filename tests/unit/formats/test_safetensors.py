"""safetensors headers: what a sound file says, and every way in which one can be wrong."""

import contextlib
import struct
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import ModelFileError
from engines.formats.safetensors import parse_header, read_header

ROW = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}


def write(path: Path, header: Any, data: bytes = b"\0" * 12) -> Path:
    """A file with this header."""
    raw = header if isinstance(header, bytes) else orjson.dumps(header)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    """Names, shapes, bytes, and the texts beside them."""
    header = read_header(write(tmp_path / "a.safetensors", {"w": ROW, "__metadata__": {"by": "me", "n": 1}}))
    assert [(t.name, t.type_name, t.shape, t.size, t.weights) for t in header.tensors] == [("w", "F16", (2, 3), 12, 6)]
    assert header.metadata == {"by": "me"}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"w": ROW}, b"\0" * 11, "not whole"),
        ({"w": {**ROW, "shape": [2, 4]}}, b"\0" * 12, "another size"),
        ({"w": {**ROW, "data_offsets": [12, 0]}}, b"\0" * 12, "another size"),
        ({"w": {**ROW, "shape": "2x3"}}, b"\0" * 12, "can't be read"),
        ({"w": {**ROW, "shape": [-2, -3]}}, b"\0" * 12, "can't be read"),
        ({"w": {**ROW, "shape": [True, 6]}}, b"\0" * 12, "can't be read"),
        ({"w": []}, b"", "can't be read"),
        ([], b"", "no list of tensors"),
        (b"{", b"", "can't be read"),
    ],
)
def test_a_damaged_file_says_how(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    """Each fault has words of its own, and none is an exception that nobody expected."""
    with pytest.raises(ModelFileError, match=words):
        read_header(write(tmp_path / "a.safetensors", header, data))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"<html>not found</html>", "not a safetensors file"),
        (struct.pack("<Q", 10**6) + b"{}", "not whole"),
        (struct.pack("<Q", 0), "not a safetensors file"),
    ],
)
def test_what_is_no_such_file_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    """A web page, a file that was cut, an empty one."""
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match=words):
        read_header(tmp_path / "a.safetensors")


def test_a_folder_and_a_missing_file_are_told(tmp_path: Path) -> None:
    """No OSError gets out."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelFileError):
            read_header(path)


@given(st.binary(max_size=200), st.integers(0, 10**6))
def test_any_bytes_are_read_or_refused(raw: bytes, size: int) -> None:
    """Nothing but a refusal comes of rubbish."""
    with contextlib.suppress(ModelFileError):
        parse_header(raw, size, "a")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=4),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=12), inside, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["w", "__metadata__"]), st.fixed_dictionaries({}, optional={
    "dtype": _JSON, "shape": _JSON, "data_offsets": _JSON,
})))  # fmt: skip
def test_any_rows_are_read_or_refused(rows: dict[str, Any]) -> None:
    """A header is the work of strangers: any value may stand anywhere."""
    try:
        raw = orjson.dumps(rows)
    except TypeError:
        return
    with contextlib.suppress(ModelFileError):
        parse_header(raw, len(raw) + 8, "a")
