"""What reading a model's header takes, in time and in memory, with a vocabulary as large as they come."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from pathlib import Path

from bench.support.errors import BenchError
from bench.support.report import Table, mebibytes, milliseconds
from engines.formats.gguf import read_metadata
from tests.fakes.tiny_gguf import LLAMA, Tensor, Typed, write_gguf

_WORDS = 150_000
_ROUNDS = 15
_SECONDS = 0.1
_BYTES = 16 * 2**20


def header_walk(folder: Path) -> Table:
    """A table of one row.

    Raises:
        BenchError: the walk failed.
    """
    path = large_vocabulary(folder / "words.gguf")
    times, busy = [], []
    for _ in range(_ROUNDS):
        began, cpu = time.perf_counter(), time.thread_time()
        found = read_metadata((path,)).vocabulary_size
        times.append(time.perf_counter() - began)
        busy.append(time.thread_time() - cpu)
        if found != _WORDS:
            raise BenchError("the walk did not find the vocabulary")
    tracemalloc.start()
    read_metadata((path,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    table = Table(
        f"Header walk, {_WORDS:,} tokens in the vocabulary",
        ["file", "median", "quickest", "CPU of it, median", "most memory at once", "walks"],
    )
    walk = statistics.median(busy)
    cells = (statistics.median(times), min(times), walk)
    table.row(mebibytes(path.stat().st_size), *map(milliseconds, cells), mebibytes(peak), str(_ROUNDS))
    met = "met" if walk <= _SECONDS and peak <= _BYTES else "MISSED"
    table.notes.append(f"target: under {milliseconds(_SECONDS)} of CPU, and {mebibytes(_BYTES)}: {met}")
    return table


def large_vocabulary(path: Path) -> Path:
    """A file with tokens, scores, kinds and merges, as byte-pair vocabularies have them."""
    words = [f"token{number:06d}" for number in range(_WORDS)]
    metadata = {
        **LLAMA,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [0.0] * _WORDS,
        "tokenizer.ggml.token_type": [Typed("i32", 1)] * _WORDS,
        "tokenizer.ggml.merges": [f"{word[:5]} {word[5:]}" for word in words],
    }
    return write_gguf(path, metadata, [Tensor(f"blk.{number}.weight") for number in range(300)])
