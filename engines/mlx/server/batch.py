"""Answers that are computed together: they join and leave at any step. Runs in the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences

from engines.mlx.server import layers as caches
from engines.mlx.server.loading import Loaded
from engines.mlx.server.options import Options
from engines.mlx.server.pace import Pace
from engines.mlx.server.rules import Rules, note
from engines.mlx.server.scoring import Scoring
from engines.mlx.server.sequence import Sequence

_PROMPTS_AT_ONCE = 8

Keep = Callable[[list[int], list[Any]], None]
"""Told of what was computed, the tokens that were fed and their caches, when an answer has ended."""


@dataclass(frozen=True, slots=True)
class Parked:
    """An answer whose client reads too slowly: ``tokens`` were fed, and ``layers`` hold all but the last of them."""

    sequence: Sequence
    layers: list[Any]
    tokens: list[int]


class BatchLane:
    """Continuous batching over ``BatchGenerator``."""

    def __init__(self, loaded: Loaded, options: Options, keep: Keep) -> None:
        self._scoring = Scoring(loaded.spelling)
        self._keep = keep
        self._pace = Pace(options.prefill_step, options.decode_pause)
        self._step_size = options.prefill_step
        stops = [[token] for token in loaded.tokenizer.eos_token_ids]
        self._stops = StopSequences(stops or None)
        self._never = StopSequences(None)
        self._generator = BatchGenerator(
            loaded.model,
            completion_batch_size=options.parallel,
            prefill_batch_size=min(options.parallel, _PROMPTS_AT_ONCE),
            prefill_step_size=options.prefill_step,
            max_kv_size=options.max_kv_size,
        )
        self._running: dict[int, Sequence] = {}
        self._uids: dict[int, int] = {}
        self._reading: set[int] = set()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def reading(self) -> int:
        """Prompts that are being read."""
        return len(self._reading)

    @property
    def rate(self) -> float | None:
        """Tokens of prompts a second; None before the first."""
        return self._pace.rate

    def start(self, sequence: Sequence, rules: Rules, layers: list[Any] | None, cached: int) -> None:
        """Let an answer join: its prompt is read from the token after the cached ones.

        Raises:
            Exception: what it asks for can't be computed; nothing has changed then.
        """
        work = sequence.work
        prompt = list(work.prompt)
        (uid,) = self._generator.insert(
            [prompt[cached:]],
            max_tokens=[work.most],
            caches=[layers],
            all_tokens=[prompt[:cached]],
            samplers=[rules.sampler],
            logits_processors=[list(rules.processors)],
            stop_sequences=[self._never if work.wishes.ignore_eos else self._stops],
        )
        self._running[uid] = sequence
        self._uids[work.id] = uid
        self._reading.add(uid)

    def drop(self, identity: int, *, keep: bool = True) -> bool:
        """Let an answer leave; what was computed is kept. False: it is not here."""
        uid = self._uids.get(identity)
        if uid is None:
            return False
        self._forget(uid)
        caches = self._generator.remove([uid], return_prompt_caches=keep)
        if keep and uid in caches:
            layers, tokens = caches[uid]
            self._keep(list(tokens), list(layers))
        return True

    def park(self, identity: int) -> Parked | None:
        """Set an answer aside with all that it needs to go on; None: it is not here, or can't be."""
        uid = self._uids.get(identity)
        if uid is None or uid in self._reading:
            return None
        layers, tokens = self._generator.extract_cache([uid])[uid]
        kept = caches.copied(layers, len(tokens) - 1)
        if kept is None:
            return None
        sequence = self._running[uid]
        self._forget(uid)
        self._generator.remove([uid])
        mx.eval([layer.state for layer in kept])
        return Parked(sequence, kept, list(tokens))

    def resume(self, parked: Parked, rules: Rules) -> None:
        """Let it join again: its last token is fed once more, and the next one is drawn as it would have been."""
        sequence, tokens = parked.sequence, parked.tokens
        (uid,) = self._generator.insert(
            [tokens[-1:]],
            max_tokens=[sequence.work.most - sequence.said],
            caches=[parked.layers],
            all_tokens=[tokens[:-1]],
            samplers=[rules.sampler],
            logits_processors=[list(rules.processors)],
            stop_sequences=[self._never if sequence.work.wishes.ignore_eos else self._stops],
        )
        self._running[uid] = sequence
        self._uids[sequence.work.id] = uid

    def step(self) -> None:
        """The next token of each answer, and a piece of each prompt.

        Raises:
            Exception: the computation itself failed, for all.
        """
        reading = len(self._reading)
        answers = len(self._running) - reading
        self._generator.prefill_step_size = self._pace.size(answers=answers, prompts=reading)
        counters = self._generator._counters  # noqa: SLF001  its own count, which tells prompts from answers
        tokens, seconds = counters.prompt_tokens, counters.prompt_time
        read, written = self._generator.next()
        self._pace.learn(counters.prompt_tokens - tokens, counters.prompt_time - seconds)
        for report in read:
            self._read(report)
        for token in written:
            self._written(token)

    def close(self) -> None:
        """Give back what the computation holds."""
        self._generator.close()

    def _read(self, report: Any) -> None:
        sequence = self._running.get(report.uid)
        if sequence is None:
            return
        if report.end_of_prompt:
            self._reading.discard(report.uid)
        done, rest = report.progress
        sequence.read(len(sequence.work.prompt) - rest + done)

    def _written(self, response: Any) -> None:
        """Pass a token on; a fault in its own rules, text or scores ends its answer alone."""
        sequence = self._running.get(response.uid)
        if sequence is None:
            return
        if sequence.failure is None:
            try:
                self._pass_on(sequence, response)
            except Exception as error:  # noqa: BLE001  see above
                note(sequence, error, "spelling its tokens")
        if sequence.failure is not None:
            self.drop(sequence.work.id, keep=False)
            sequence.fail(sequence.failure)

    def _pass_on(self, sequence: Sequence, response: Any) -> None:
        top = sequence.work.wishes.top_logprobs
        stopped = False
        if response.finish_reason != "stop":
            scored = None if top is None else self._scoring.of(response.logprobs, response.token, top)
            stopped = sequence.add(response.token, scored)
        if response.finish_reason is not None:
            sequence.end(response.finish_reason)
            self._forget(response.uid)
            self._keep(list(response.all_tokens), list(response.prompt_cache))
        elif stopped:
            sequence.end("stop")
            self.drop(sequence.work.id)

    def _forget(self, uid: int) -> None:
        sequence = self._running.pop(uid)
        self._uids.pop(sequence.work.id, None)
        self._reading.discard(uid)
