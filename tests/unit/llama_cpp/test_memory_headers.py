"""Model files rebuilt from recorded headers, through our own header walk."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.formats.gguf import read_metadata, split_files
from engines.formats.gguf_layout import PlacedTensor, number_arrays, placed_tensors
from engines.llama_cpp.memory_model import model_shape
from engines.llama_cpp.memory_weights import group_bytes
from tests.support.memory_rows import metadata_of_row, recorded_headers
from tests.support.recorded_models import write_model

_MIB = 2**20


@pytest.fixture(scope="module")
def headers() -> Mapping[str, Mapping[str, Any]]:
    """The recorded models."""
    return recorded_headers()


def _shifted(tensors: tuple[PlacedTensor, ...]) -> Iterator[PlacedTensor]:
    """With places counted from the first tensor of each file: a rebuilt file's vocabulary has other lengths."""
    first: dict[int, int] = {}
    for tensor in tensors:
        first.setdefault(tensor.file, tensor.start)
        yield replace(tensor, start=tensor.start - first[tensor.file])


def test_a_walk_gives_the_recorded_layout(headers: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    """Names, types, dimensions, places and number arrays of every recorded model, split ones too."""
    for name, header in headers.items():
        folder = tmp_path / name
        folder.mkdir()
        paths = write_model(header, folder)
        assert split_files(paths[0]) == paths
        walked, recorded = read_metadata(paths), metadata_of_row(header)
        assert list(_shifted(placed_tensors(walked.layout))) == list(_shifted(placed_tensors(recorded.layout))), name
        assert number_arrays(walked.layout) == number_arrays(recorded.layout), name
        sizes = [tensor.size for tensor in placed_tensors(walked.layout)]
        assert sizes == [tensor[3] for tensor in header["tensors"]], name
        for path in paths:
            path.unlink()


def test_a_walk_gives_the_recorded_shape(headers: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    """Everything that decides memory, apart from where in the file the tensors begin."""
    for name in sorted(headers)[::5]:
        folder = tmp_path / name
        folder.mkdir()
        walked = model_shape(read_metadata(write_model(headers[name], folder)))
        recorded = model_shape(metadata_of_row(headers[name]))
        assert walked is not None
        assert recorded is not None
        assert replace(walked, tensors={}) == replace(recorded, tensors={}), name


def test_experts_and_dense_bytes_are_told_apart(headers: Mapping[str, Mapping[str, Any]]) -> None:
    """Input, output, dense and expert bytes add up to the file's, and layers to what lies in layers."""
    for header in headers.values():
        shape = model_shape(metadata_of_row(header))
        assert shape is not None
        parts = group_bytes(shape)
        total = sum(tensor[3] for tensor in header["tensors"])
        assert sum(parts.get(kind, 0) for kind in ("input", "output", "dense", "experts")) == total
        layers = sum(size for kind, size in parts.items() if kind.startswith("blk."))
        assert layers == parts["dense"] + parts.get("experts", 0)
        assert ("experts" in parts) == any("_exps." in tensor[0] for tensor in header["tensors"])


def test_a_large_vocabulary_is_walked_quickly(headers: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    """150,000 tokens and a few hundred tensors: little time and little memory, the packed layout included."""
    header = max(headers.values(), key=lambda header: len(header["tensors"]))
    count = {"len": 150_000}
    names = ("tokens", "scores", "token_type")
    kv = header["kv"] | {f"tokenizer.ggml.{name}": count for name in names}
    paths = write_model({**header, "kv": kv | {"tokenizer.ggml.model": "llama"}}, tmp_path)
    read_metadata(paths)
    seconds = min(_timed(paths) for _ in range(5))
    assert seconds < 0.5  # a tenth of it where nothing else runs
    tracemalloc.start()
    metadata = read_metadata(paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert metadata.vocabulary_size == 150_000
    assert peak < 16 * _MIB


def _timed(paths: tuple[Path, ...]) -> float:
    begin = time.perf_counter()
    read_metadata(paths)
    return time.perf_counter() - begin
