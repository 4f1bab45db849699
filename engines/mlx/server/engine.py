"""The engine: a loaded model and all answers that are computed with it. One thread owns it, from load to end."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence as Tokens
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from engines.mlx.server import layers as caches
from engines.mlx.server.batch import BatchLane, Parked
from engines.mlx.server.cache_disk import DiskCache, cache_folder, fingerprint
from engines.mlx.server.constrain import Constraint
from engines.mlx.server.drafting import load_drafter
from engines.mlx.server.loading import Loaded, load_model
from engines.mlx.server.options import Options
from engines.mlx.server.prefixes import Entry, Prefixes
from engines.mlx.server.problems import RequestError
from engines.mlx.server.rules import rules_of
from engines.mlx.server.sequence import Emit, Sequence
from engines.mlx.server.single import SingleLane
from engines.mlx.server.speculation import speculates
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
        self.drafter, self.speculation_off = load_drafter(options, self.loaded)
        self.prefixes = Prefixes(options.cache_bytes)
        self._waiting: deque[Work] = deque()
        self._parked: dict[int, Parked] = {}
        self._returning: deque[int] = deque()
        self._batch = BatchLane(self.loaded, options, self._keep)
        self._single = SingleLane(self.loaded, options, self._keep, self.drafter)
        self._layout = self._single.layers()
        self._told: set[str] = set()
        self._disk = self._open_disk()

    @property
    def busy(self) -> bool:
        """There is work."""
        return bool(self._waiting or self._running or self._returning)

    @property
    def _running(self) -> int:
        return len(self._batch) + len(self._single)

    def submit(self, work: Work) -> None:
        """Take work; it begins at the next step at which there is room."""
        self._waiting.append(work)

    def cancel(self, identity: int) -> None:
        """Nobody wants it any more: it leaves before the next step."""
        for work in self._waiting:
            if work.id == identity:
                self._waiting.remove(work)
                return
        parked = self._parked.pop(identity, None)
        if parked is not None:
            self._keep(parked.tokens, parked.layers)
        elif not self._batch.drop(identity):
            self._single.drop(identity)

    def pause(self, identity: int) -> None:
        """Its client does not read: it is set aside, if it can be, so that what waits for it does not grow."""
        parked = self._batch.park(identity)
        if parked is not None:
            self._parked[identity] = parked

    def resume(self, identity: int) -> None:
        """Its client reads again: it goes on at the next step at which there is room."""
        if identity in self._parked:
            self._returning.append(identity)

    def step(self) -> None:
        """One step of everything that runs.

        Raises:
            Exception: the computation itself failed: the engine is broken.
        """
        while self._returning and self._running < self._options.parallel:
            self._return(self._returning.popleft())
        while self._waiting and self._running < self._options.parallel:
            self._start(self._waiting.popleft())
        if len(self._single):
            self._single.step(others=len(self._batch))
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

    def flush(self, seconds: float) -> int:
        """Save what was computed, so that it outlives the process; the number of entries that were saved."""
        return 0 if self._disk is None else self._disk.flush(self.prefixes, seconds)

    def forget(self) -> None:
        """Drop what was computed for later, in memory and on disk."""
        self.prefixes.clear()
        if self._disk is not None:
            self._disk.clear()

    def cache_document(self) -> dict[str, Any]:
        """What is kept for later prompts, in tokens and bytes, and how often it was of use."""
        stats, disk = self.prefixes.stats, self._disk
        return {
            "entries": len(self.prefixes),
            "bytes": self.prefixes.size,
            "budget_bytes": self.prefixes.budget,
            "hits": stats.hits,
            "misses": stats.misses,
            "refused": stats.refused,
            "evicted": stats.evicted,
            "reused_tokens": stats.reused_tokens,
            "disk_bytes": None if disk is None else disk.size,
            "disk_budget_bytes": None if disk is None else self._options.cache_disk_bytes,
            "saved": None if disk is None else disk.stats.saved,
            "restored": None if disk is None else disk.stats.loaded,
            "disk_refused": None if disk is None else disk.stats.refused,
        }

    def close(self) -> None:
        """Give everything back, in the thread that made it."""
        self._single.close()
        self._batch.close()
        self.prefixes.clear()

    def _open_disk(self) -> DiskCache | None:
        folder = cache_folder(self._options, fingerprint(self._options, self.loaded.facts.versions))
        if folder is None:
            return None
        disk = DiskCache(folder, self._options.cache_disk_bytes, self._layout, save_prompt_cache, load_prompt_cache)
        found = disk.restore(self.prefixes)
        if found:
            _log.info("cache: %d prompts of an earlier life are on disk", found)
        return disk

    def _start(self, work: Work) -> None:
        """Begin a piece of work; a fault in it ends it alone."""
        reused, cached = self._reuse(work)
        sequence = Sequence(work, self.loaded.spelling.speller(work.prompt), self._emit, cached)
        try:
            rules = rules_of(sequence, *self._constraints(work))
            guess, reason = speculates(work, self.drafter, self._running)
            if reason:
                self._tell_once(f"[spec] off for a request ({reason})")
            if guess or work.sequential or not self.loaded.facts.batches:
                self._single.start(sequence, rules, reused, cached, guess=guess)
            else:
                self._batch.start(sequence, rules, reused, cached)
        except Exception as error:  # noqa: BLE001  see above
            _log.warning("request %d could not begin: %r", work.id, error)
            failed = RequestError(f"the request could not begin: {error}", status=_FAILED, kind="server_error")
            sequence.fail(error if isinstance(error, RequestError) else failed)

    def _return(self, identity: int) -> None:
        """Go on with what was set aside, by the rules that it had."""
        parked = self._parked.pop(identity, None)
        if parked is None:
            return
        sequence = parked.sequence
        try:
            self._batch.resume(parked, rules_of(sequence, *self._constraints(sequence.work), place=sequence.said))
        except Exception as error:  # noqa: BLE001  as at its beginning
            sequence.fail(RequestError(f"the request could not go on: {error}", status=_FAILED, kind="server_error"))

    def _constraints(self, work: Work) -> tuple[Constraint, ...]:
        if work.matcher is None:
            return ()
        tokenizer = self.loaded.tokenizer
        ends = tokenizer.think_end_tokens if work.thinking else None
        after = ends[0] if ends is not None and len(ends) == 1 else None
        return (Constraint(work.matcher, len(work.prompt), frozenset(tokenizer.eos_token_ids), after),)

    def _reuse(self, work: Work) -> tuple[list[Any] | None, int]:
        """Caches for the beginning of a prompt, and how many tokens they hold."""
        stats = self.prefixes.stats
        match = self.prefixes.find(work.prompt) if work.wishes.cache_prompt else None
        if match is not None and self._in_memory(match.entry):
            layers = caches.copied(match.entry.layers, match.length)
            if layers is not None:
                stats.hits += 1
                stats.reused_tokens += match.length
                return layers, match.length
        stats.misses += 1
        return None, 0

    def _in_memory(self, entry: Entry) -> bool:
        if entry.layers is not None:
            return True
        return self._disk is not None and self._disk.fetch(entry, self.prefixes)

    def _keep(self, tokens: list[int], layers: list[Any]) -> None:
        """Keep what was computed, if it is sure what that is."""
        if self.prefixes.budget <= 0:
            return
        prefix = caches.cached_prefix(layers, tokens)
        if prefix is None or not caches.matches_layout(layers, self._layout):
            self.prefixes.stats.refused += 1
            return
        # Until they are computed, they hold on to the caches of the whole batch that they were taken from.
        mx.eval([layer.state for layer in layers])
        self.prefixes.put(Entry(prefix, layers, caches.size_of(layers), caches.cuttable(layers)))

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            _log.info("%s", line)


def _limit_threads(threads: int) -> None:
    """Libraries ask for these when they are loaded, so it must come first."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
