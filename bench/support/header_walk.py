"""What reading a model's header takes, in time and in memory, with a vocabulary as large as they come."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.support.errors import BenchError
from bench.support.report import Table, mebibytes, milliseconds
from engines.formats.gguf import read_metadata
from tests.fakes.tiny_gguf import LLAMA, Tensor, Typed, write_gguf

_WORDS = 150_000
_ROUNDS = 15
_SECONDS = 0.1
_BYTES = 16 * 2**20
# In a process of its own: what the walk adds to the most memory that it ever held.
_PEAK = """
import resource, sys
from pathlib import Path
from engines.formats.gguf import read_metadata
from tests.fakes.tiny_gguf import write_gguf
read_metadata((write_gguf(Path(sys.argv[2])),))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_metadata((Path(sys.argv[1]),))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def header_walk(folder: Path) -> Table:
    """A table of one row.

    Raises:
        BenchError: the walk failed.
    """
    path = large_vocabulary(folder / "words.gguf")
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        found = read_metadata((path,)).vocabulary_size
        times.append(time.perf_counter() - began)
        if found != _WORDS:
            raise BenchError("the walk did not find the vocabulary")
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path), str(folder / "tiny.gguf")], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"the walk failed: {done.stderr.strip()}")
    peak = int(done.stdout)
    table = Table(
        f"Header walk, {_WORDS:,} tokens in the vocabulary", ["file", "median", "slowest", "memory on top", "walks"]
    )
    median = statistics.median(times)
    table.row(mebibytes(path.stat().st_size), milliseconds(median), milliseconds(max(times)), mebibytes(peak), "15")
    met = "met" if median <= _SECONDS and peak <= _BYTES else "MISSED"
    table.notes.append(f"target: under {milliseconds(_SECONDS)} and {mebibytes(_BYTES)}: {met}")
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
