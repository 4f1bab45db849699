"""The command line of the server. Nothing heavy is imported for it: ``--help`` must be quick."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CONTEXT = 8192
DEFAULT_PARALLEL = 4
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Options:
    """How the server was started.

    Attributes:
        model: folder of the model.
        alias: the name that it is asked by.
        context: tokens that one request may use; never more than the model was trained on, unless it does not say.
        parallel: requests that are computed together; more wait.
        prefill_step: tokens of a prompt that are read at once while nobody else waits for tokens.
        decode_pause: seconds that a piece of a prompt may take while answers are being written.
        kv_bits: bits of the cache of keys and values; None: as the model computes.
        max_kv_size: tokens of a rotating window; None: all are kept.
        cache_bytes: of prompts and answers that are kept in memory; 0: none.
        cache_dir: where they are saved when asked, and at the end; None: nowhere.
        cache_disk_bytes: the most that may lie there.
        draft_model: folder of a smaller model with the same tokens; None: none.
        draft_tokens: that it is ahead.
        embeddings: vectors of texts are given too.
        threads: that MLX and its libraries may use; None: theirs.
        drain: seconds that running requests may still take after SIGTERM.
    """

    model: Path
    alias: str
    socket: Path | None
    host: str
    port: int
    context: int | None
    parallel: int
    prefill_step: int
    decode_pause: float
    kv_bits: int | None
    kv_group_size: int
    max_kv_size: int | None
    cache_bytes: int
    cache_dir: Path | None
    cache_disk_bytes: int
    draft_model: Path | None
    draft_tokens: int
    embeddings: bool
    threads: int | None
    drain: float


def parser() -> argparse.ArgumentParser:
    """The options and their texts."""
    made = argparse.ArgumentParser(prog="mlx-server", description="Serves one MLX model over HTTP.", allow_abbrev=False)
    add = made.add_argument
    add("--version", action="store_true", help="print the versions of Python, MLX and mlx-lm, and end")
    add("--list-options", action="store_true", help="print this text if the server can run here, and end")
    add("--list-devices", action="store_true", help="print what MLX computes on, and end")
    add("--model", type=Path, help="folder with config.json and safetensors")
    add("--alias", help="the name that the model is asked by (default: the folder's)")
    add("--host", default="127.0.0.1", help="address, or a path that ends in .sock for a Unix socket")
    add("--port", type=int, default=8080)
    add("--ctx-size", type=_positive, help="tokens that one request may use (default: the model's, at most 8192)")
    add("--parallel", type=_positive, default=DEFAULT_PARALLEL, help="requests computed together")
    add("--prefill-step", type=_positive, default=512, help="tokens of a prompt read at once")
    add("--decode-pause-ms", type=_positive, default=100, help="the longest that prompts hold up answers")
    add("--kv-bits", type=int, choices=(4, 8), help="quantise the KV cache; requests are then computed one by one")
    add("--kv-group-size", type=int, choices=(32, 64, 128), default=64)
    add("--max-kv-size", type=_positive, help="keep this many tokens in a rotating window")
    add("--cache-ram", type=_natural, default=256, help="MiB for prompts that may come again; 0: none")
    add("--cache-dir", type=Path, help="folder in which they outlive the process")
    add("--cache-disk", type=_natural, default=2048, help="MiB that may lie there")
    add("--draft-model", type=Path, help="folder of a smaller model with the same tokens")
    add("--draft-tokens", type=_positive, default=3, help="tokens that it is ahead")
    add("--embeddings", action="store_true", help="serve /v1/embeddings too")
    add("--threads", type=_positive, help="threads of MLX and its libraries")
    add("--drain-ms", type=_natural, default=4000, help="that running requests may still take after SIGTERM")
    return made


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed line; a wrong one ends the process with 2."""
    return parser().parse_args(argv)


def options_of(parsed: argparse.Namespace) -> Options:
    """What was asked for, of a line that names a model."""
    socket = Path(parsed.host) if parsed.host.endswith(".sock") else None
    return Options(
        model=parsed.model,
        alias=parsed.alias or parsed.model.name,
        socket=socket,
        host=parsed.host,
        port=parsed.port,
        context=parsed.ctx_size,
        parallel=parsed.parallel,
        prefill_step=parsed.prefill_step,
        decode_pause=parsed.decode_pause_ms / 1000,
        kv_bits=parsed.kv_bits,
        kv_group_size=parsed.kv_group_size,
        max_kv_size=parsed.max_kv_size,
        cache_bytes=parsed.cache_ram * _MIB,
        cache_dir=parsed.cache_dir,
        cache_disk_bytes=parsed.cache_disk * _MIB,
        draft_model=parsed.draft_model,
        draft_tokens=parsed.draft_tokens,
        embeddings=parsed.embeddings,
        threads=parsed.threads,
        drain=parsed.drain_ms / 1000,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number
