"""One launch of a real engine: what its log declares, and what the process takes after one full batch."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.support.errors import BenchError
from bench.support.machine import own_bytes
from tests.support.real_engine import Loading, loading
from tests.support.sockets import short_socket_folder
from tests.wire.beside import ask_engine

_RESERVED = "graph splits"
_LONGEST = 120.0


@dataclass(frozen=True, slots=True)
class Launched:
    """MiB by place and buffer, and bytes of the process's own memory, ready and after a batch (None: not asked)."""

    declared: Mapping[tuple[str, str], float]
    ready: int | None
    anonymous: int | None


def launched(argv: Sequence[str], env: Mapping[str, str], tokens: int | None) -> Launched:
    """Launch; with ``tokens``, wait until it is ready and give it a prompt of so many.

    Raises:
        BenchError: it did not get that far.
    """
    with short_socket_folder() as folder:
        socket = folder / "e.sock"
        until = _RESERVED if tokens is None else "listening on"
        with loading([*argv, "--host", str(socket)], env, until=until) as seen:
            if not seen.loaded:
                raise BenchError("the engine did not load: " + " ".join(seen.lines[-3:]))
            if tokens is None:
                return Launched(dict(seen.declared), None, None)
            ready = own_bytes(seen.pid)
            return Launched(dict(seen.declared), ready, _after_a_batch(seen, socket, tokens, "--embeddings" in argv))


def _after_a_batch(seen: Loading, socket: Path, tokens: int, embeds: bool) -> int:
    prompt = [5 + number % 90 for number in range(tokens)]
    where, body = "/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": False}
    if embeds:
        where, body = "/embedding", {"content": prompt}
    with contextlib.suppress(http.client.HTTPException):
        ask_engine(str(socket), "none", where, body, timeout=_LONGEST)
    return own_bytes(seen.pid)
