"""The header walk: what is read, and that nothing but ModelFileError comes out of bad files."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.contract import ModelFileError
from engines.formats.gguf import GgufHeader, TensorInfo, read_header, read_metadata
from engines.formats.gguf_tables import FILE_TYPES, POOLINGS, TENSOR_TYPES
from tests.fakes.tiny_gguf import LLAMA, Tensor, Typed, gguf_bytes, string, value, write_gguf

_SOUND = gguf_bytes()
_ANY_TMP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _read(tmp_path: Path, content: bytes) -> GgufHeader:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return read_header(path)


def _refusal(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        _read(tmp_path, content)
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_is_read_as_it_was_written(tmp_path: Path, version: int) -> None:
    """Numbers keep their sign and size, booleans are booleans, and strings are text."""
    written = {
        "u8": Typed("u8", 255),
        "i8": Typed("i8", -128),
        "u16": Typed("u16", 65535),
        "i16": Typed("i16", -32768),
        "u32": Typed("u32", 2**32 - 1),
        "i32": Typed("i32", -(2**31)),
        "f32": Typed("f32", 0.5),
        "u64": Typed("u64", 2**64 - 1),
        "i64": Typed("i64", -(2**63)),
        "f64": Typed("f64", 0.1),
    }
    header = _read(tmp_path, gguf_bytes({**written, "yes": True, "text": "größer"}, version=version))
    assert header.version == version
    assert header.metadata == {key: typed.value for key, typed in written.items()} | {"yes": True, "text": "größer"}
    assert header.metadata["yes"] is True


def test_small_number_arrays_are_kept_and_other_arrays_are_counted(tmp_path: Path) -> None:
    """Heads by layer are needed for the memory estimate; a vocabulary only for its size."""
    arrays = {
        "heads": [8, 0, 8],
        "windowed": [True, False],
        "tokens": ["a", "b" * 5000, ""],
        "nested": [[1, 2], [3], ["a", "b"]],
        "scores": [Typed("f32", 0.0)] * 5000,
        "after": 7,
    }
    header = _read(tmp_path, gguf_bytes(arrays))
    assert header.arrays == {"heads": (8, 0, 8), "windowed": (True, False)}
    assert header.array_counts == {"heads": 3, "windowed": 2, "tokens": 3, "nested": 3, "scores": 5000}
    assert header.metadata == {"after": 7}


def test_strings_that_cross_the_read_window_are_walked_over(tmp_path: Path) -> None:
    """The file is read in pieces of 1 MiB: no string array and no value may depend on where a piece ends."""
    sizes = [0, 1, 2**20 - 9, 2**20, 3 * 2**20 + 1, 5]
    header = _read(tmp_path, gguf_bytes({"long": ["x" * size for size in sizes], "one": "y" * 2**21, "last": 9}))
    assert header.array_counts == {"long": len(sizes)}
    assert header.metadata == {"one": "y" * 1024, "last": 9}


def test_the_tensor_table_gives_places_and_bytes(tmp_path: Path) -> None:
    """Offsets count from the aligned end of the header; quantised types come in blocks."""
    tensors = [Tensor("a", (256, 2), 12, 288), Tensor("b", (32,), 0), Tensor("c", (10,), 99, 64)]
    header = _read(tmp_path, gguf_bytes(LLAMA, tensors))
    assert header.tensors == (
        TensorInfo("a", (256, 2), "Q4_K", 0, 288),
        TensorInfo("b", (32,), "F32", 288, 128),
        TensorInfo("c", (10,), "type 99", 416, None),
    )
    assert header.data_offset % header.alignment == 0
    assert header.tensor_bytes == header.file_bytes - header.data_offset == 480


def test_another_alignment_is_followed(tmp_path: Path) -> None:
    """``general.alignment`` moves the data."""
    content = gguf_bytes({"general.alignment": 4096}, [Tensor("a"), Tensor("b")], alignment=4096)
    header = _read(tmp_path, content)
    assert (header.alignment, header.data_offset) == (4096, 4096)
    assert [tensor.offset for tensor in header.tensors] == [0, 4096]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\0" * 4096, "zero bytes"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"tjgg\3\0\0\0", "before GGUF"),
        (b"PK\3\4....", "zip archive"),
        (b"G", "not a GGUF"),
        (b"GGUF", "cut short"),
        (_SOUND[:23], "cut short"),
        (struct.pack("<4sI", b"GGUF", 1) + _SOUND[8:], "version 1"),
        (struct.pack(">4sI", b"GGUF", 3) + _SOUND[8:], "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63), "9223372036854775808 keys"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), "9223372036854775808 tensors"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 5), "cut short"),
    ],
)
def test_what_is_no_sound_gguf_is_refused_with_its_reason(tmp_path: Path, content: bytes, says: str) -> None:
    """The sentence names the file and says what it is instead, so that the owner knows what to do."""
    message = _refusal(tmp_path, content)
    assert says in message
    assert message.startswith("m.gguf ")


def test_a_file_cut_in_its_weights_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """A download that stopped half-way has a whole header: only the sizes tell."""
    message = _refusal(tmp_path, gguf_bytes(LLAMA, [Tensor(dims=(32, 1000))])[:-64000])
    whole = len(gguf_bytes(LLAMA, [Tensor(dims=(32, 1000))]))
    assert f"is {whole - 64000} bytes, its header promises {whole}" in message


def test_the_padding_behind_the_last_tensor_may_be_missing(tmp_path: Path) -> None:
    """Some writers don't pad at the end, and the engine doesn't ask for it."""
    content = gguf_bytes(LLAMA, [Tensor("a", (33,), 0)])
    assert _read(tmp_path, content[:-28]).tensor_bytes == 132
    assert "promises" in _refusal(tmp_path, content[:-29])


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """No prefix of a sound file is taken for a sound one."""
    for cut in range(len(_SOUND)):
        assert "m.gguf" in _refusal(tmp_path, _SOUND[:cut])


_HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
_KEY = string("k")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (struct.pack("<Q", 2**64 - 1) + b"k" * 8, "damaged"),
        (struct.pack("<Q", 2000) + b"k" * 4000, "a name in its header claims 2000 bytes"),
        (_KEY + struct.pack("<I", 13), "unknown type 13"),
        (_KEY + struct.pack("<IQ", 8, 2**63), "damaged"),
        (_KEY + struct.pack("<IQ", 8, 5000), "cut short"),
        (_KEY + struct.pack("<IIQ", 9, 8, 2**60), "claim millions"),
        (_KEY + struct.pack("<IIQ", 9, 8, 2**20), "cut short"),
        (_KEY + struct.pack("<IIQ", 9, 4, 2**62), "damaged"),
        (_KEY + struct.pack("<IIQ", 9, 77, 2), "array of unknown type 77"),
        (_KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50, "unknown type 9"),
        (_KEY + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", 2**63) + b"\0" * 64, "damaged"),
    ],
)
def test_absurd_lengths_and_types_are_refused(tmp_path: Path, entry: bytes, says: str) -> None:
    """Nothing is reserved or walked on the word of a length that can't be true."""
    assert says in _refusal(tmp_path, _HEAD + entry)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (Tensor(dims=(1,) * 5, size=4), "5 dimensions"),
        (Tensor(dims=(2**40, 2**40), size=4), "can't be"),
        (Tensor(dims=(100,), type=12, size=4), "can't be 100"),
    ],
)
def test_tensors_that_can_not_be_are_refused(tmp_path: Path, tensor: Tensor, says: str) -> None:
    """Shapes that no engine takes, or that don't fit the blocks of their type."""
    assert says in _refusal(tmp_path, gguf_bytes(LLAMA, [tensor]))


def test_more_weights_than_can_be_are_refused(tmp_path: Path) -> None:
    """Each tensor may pass, of a type whose size is unknown: their sum would outgrow JSON."""
    many = [Tensor(f"t{number}", (2**56,), type=99, size=32) for number in range(2)]
    assert "more weights" in _refusal(tmp_path, gguf_bytes(LLAMA, many))


def test_doubled_names_are_refused(tmp_path: Path) -> None:
    """The engine refuses them too: better said here than after a load."""
    assert "names a tensor twice" in _refusal(tmp_path, gguf_bytes(LLAMA, [Tensor("a"), Tensor("a")]))
    doubled = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + (_KEY + value(1)) * 2
    assert "'k' twice" in _refusal(tmp_path, doubled)


@pytest.mark.parametrize("alignment", [0, 3, 2**31, True, "32"])
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, alignment: object) -> None:
    """A zero would be a division by zero, others would put the weights anywhere."""
    assert "general.alignment" in _refusal(tmp_path, gguf_bytes({"general.alignment": alignment}))


def test_what_can_not_be_opened_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and a pipe (which would block for ever) are said to be what they are."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, says in (("none.gguf", "No such file"), (".", "regular file"), ("pipe.gguf", "regular file")):
        with pytest.raises(ModelFileError, match=says):
            read_header(tmp_path / name)


def test_a_hostile_header_ends_soon(tmp_path: Path) -> None:
    """The most work that a header can ask for is a few seconds, not hours."""
    path = tmp_path / "m.gguf"
    path.write_bytes(_HEAD + _KEY + struct.pack("<IIQ", 9, 8, 2**23))
    os.truncate(path, 2**34)  # sparse: zeroes, so strings without a letter
    assert _seconds_of(path) < 10


def _seconds_of(path: Path) -> float:
    before = time.thread_time()
    read_header(path)
    return time.thread_time() - before


def test_a_large_vocabulary_is_walked_quickly_and_in_little_memory(tmp_path: Path) -> None:
    """150,000 tokens and merges: under 0.1 s of CPU and 16 MiB, since ``serve`` looks at every model it finds."""
    words = [f"token{number}" for number in range(150_000)]
    path = write_gguf(tmp_path / "m.gguf", {**LLAMA, "tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": words})
    assert read_metadata((path,)).vocabulary_size == 150_000
    assert min(_seconds_of(path) for _ in range(5)) < 0.1
    tracemalloc.start()
    try:
        read_metadata((path,))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


@given(content=st.binary(max_size=300))
@_ANY_TMP
def test_random_bytes_behind_the_magic_never_raise_anything_else(tmp_path: Path, content: bytes) -> None:
    """Whatever a file holds, the answer is a header or a ModelFileError."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + content)
    _read_or_refuse(path)


@given(data=st.data())
@settings(parent=_ANY_TMP, max_examples=300)
def test_damaged_files_never_raise_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes of a sound file may be changed, by any value: a header, metadata or a ModelFileError comes out."""
    content = bytearray(_SOUND)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(4, len(content) - 8))
        fresh = data.draw(st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\t\0\0\0", b"\x80"]) | st.binary(max_size=8))
        content[place : place + len(fresh)] = fresh
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]))
    _read_or_refuse(path)


def _read_or_refuse(path: Path) -> None:
    try:
        read_metadata((path,))
    except ModelFileError as error:
        reason = str(error)
    else:
        reason = "m.gguf is sound"
    assert reason.startswith("m.gguf ")


def test_the_tables_agree_with_the_gguf_package() -> None:
    """Our numbers are those of llama.cpp's own Python package (its Q8_1, never in a file, is out of date)."""
    constants = pytest.importorskip("gguf.constants")
    sizes = {number: (kind.weights, kind.size) for number, kind in TENSOR_TYPES.items() if kind.name != "Q8_1"}
    known = {int(kind): size for kind, size in constants.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert {number: known.get(number) for number in sizes} == sizes
    names = {int(kind): kind.name for kind in constants.GGMLQuantizationType}
    assert {number: names[number] for number in TENSOR_TYPES} == {n: kind.name for n, kind in TENSOR_TYPES.items()}
    files = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in constants.LlamaFileType}
    assert {number: files[number] for number in FILE_TYPES} == dict(FILE_TYPES)
    assert {int(kind): kind.name.lower() for kind in constants.PoolingType} == dict(POOLINGS)
