"""The engine: a loaded model and all answers that are computed with it. One thread owns it, from load to end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence as Tokens
from typing import Any

import mlx.core as mx

from engines.mlx.server import layers as caches
from engines.mlx.server.batch import BatchLane
from engines.mlx.server.loading import Loaded, load_model
from engines.mlx.server.options import Options
from engines.mlx.server.prefixes import Entry, Prefixes
from engines.mlx.server.problems import RequestError
from engines.mlx.server.rules import rules_of
from engines.mlx.server.sequence import Emit, Sequence
from engines.mlx.server.work import Work

_log = logging.getLogger(__name__)
_FAILED = 500


class Engine:
    """Computes work step by step, and emits what comes of it.

    Args:
        options: of the start.
        emit: called with the work's id and each event, in the engine's thread.
    """

    def __init__(self, options: Options, emit: Emit) -> None:
        if options.threads is not None:
            _limit_threads(options.threads)
        self._emit = emit
        self._options = options
        self.loaded: Loaded = load_model(options)
        self.prefixes = Prefixes(options.cache_bytes)
        self._waiting: deque[Work] = deque()
        self._batch = BatchLane(self.loaded, options, self._keep)

    @property
    def busy(self) -> bool:
        """There is work."""
        return bool(self._waiting or len(self._batch))

    @property
    def counts(self) -> dict[str, int]:
        """Requests that are computed, that wait, and whose prompts are being read."""
        return {"running": len(self._batch), "waiting": len(self._waiting), "reading": self._batch.reading}

    def submit(self, work: Work) -> None:
        """Take work; it begins at the next step at which there is room."""
        self._waiting.append(work)

    def cancel(self, identity: int) -> None:
        """Nobody wants it any more: it leaves before the next step."""
        for work in self._waiting:
            if work.id == identity:
                self._waiting.remove(work)
                return
        self._batch.drop(identity)

    def step(self) -> None:
        """One step of everything that runs.

        Raises:
            Exception: the computation itself failed: the engine is broken.
        """
        while self._waiting and len(self._batch) < self._options.parallel:
            self._start(self._waiting.popleft())
        if len(self._batch):
            self._batch.step()

    def embed(self, tokens: Tokens[int]) -> list[float]:
        """The mean of the vectors of a text's tokens, of length 1.

        Raises:
            RequestError: this model gives none.
        """
        if self.loaded.facts.embeds is None:
            raise RequestError("this model gives no embeddings.", status=501, kind="not_supported_error")
        hidden = self.loaded.model.model(mx.array([list(tokens)]))
        vector = mx.mean(hidden[0].astype(mx.float32), axis=0)
        length = mx.maximum(mx.linalg.norm(vector), 1e-12)
        made: list[float] = (vector / length).tolist()
        return made

    def close(self) -> None:
        """Give everything back, in the thread that made it."""
        self._batch.close()
        self.prefixes.clear()

    def _start(self, work: Work) -> None:
        """Begin a piece of work; a fault in it ends it alone."""
        reused, cached = self._reuse(work)
        sequence = Sequence(work, self.loaded.spelling.speller(work.prompt), self._emit, cached)
        try:
            self._batch.start(sequence, rules_of(sequence), reused, cached)
        except Exception as error:  # noqa: BLE001  see above
            _log.warning("request %d could not begin: %r", work.id, error)
            failed = RequestError(f"the request could not begin: {error}", status=_FAILED, kind="server_error")
            sequence.fail(error if isinstance(error, RequestError) else failed)

    def _reuse(self, work: Work) -> tuple[list[Any] | None, int]:
        """Caches for the beginning of a prompt, and how many tokens they hold."""
        stats = self.prefixes.stats
        match = self.prefixes.find(work.prompt) if work.wishes.cache_prompt else None
        if match is None or match.entry.layers is None:
            stats.misses += 1
            return None, 0
        layers = caches.copied(match.entry.layers, match.length)
        if layers is None:
            stats.misses += 1
            return None, 0
        stats.hits += 1
        stats.reused_tokens += match.length
        return layers, match.length

    def _keep(self, tokens: list[int], layers: list[Any]) -> None:
        """Keep what was computed, if it is sure what that is."""
        if self.prefixes.budget <= 0:
            return
        prefix = caches.cached_prefix(layers, tokens)
        if prefix is None:
            self.prefixes.stats.refused += 1
            return
        self.prefixes.put(Entry(prefix, layers, caches.size_of(layers), caches.cuttable(layers)))


def _limit_threads(threads: int) -> None:
    """Libraries ask for these when they are loaded, so it must come first."""
    import os  # noqa: PLC0415  used here alone

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
