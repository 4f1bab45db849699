"""Answers that are computed one by one: with a quantised cache, with a draft model, or where a session asks for it.

Each of them gets a piece of its prompt or a few tokens at each step, so that none waits for another's end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

from engines.mlx.server.batch import Keep
from engines.mlx.server.loading import Loaded
from engines.mlx.server.options import Options
from engines.mlx.server.pace import Pace
from engines.mlx.server.rules import Rules, note
from engines.mlx.server.scoring import Scoring
from engines.mlx.server.sequence import Sequence
from engines.mlx.server.speculation import Drafter

_log = logging.getLogger(__name__)
_FOLLOWED_AT_ONCE = 1


@dataclass(slots=True, eq=False)
class _One:
    """An answer on its way.

    Attributes:
        layers: the model's caches.
        read: tokens of the prompt that they hold.
        draft_layers: the draft model's caches; empty: nothing is guessed.
        draft_read: tokens of the prompt that those hold.
        tokens: the generator of the answer; None while the prompt is read.
        said: tokens of the answer.
    """

    sequence: Sequence
    rules: Rules
    layers: list[Any]
    read: int
    draft_layers: list[Any] = field(default_factory=list)
    draft_read: int = 0
    tokens: Generator[Any, None, None] | None = None
    said: list[int] = field(default_factory=list)
    depth: int = 0


class SingleLane:
    """Takes turns between its answers."""

    def __init__(self, loaded: Loaded, options: Options, keep: Keep, drafter: Drafter | None) -> None:
        self._model = loaded.model
        self._drafter = drafter
        self._options = options
        self._keep = keep
        self._ends = frozenset(loaded.tokenizer.eos_token_ids)
        self._scoring = Scoring(loaded.spelling)
        self._pace = Pace(options.prefill_step, options.decode_pause)
        self._running: dict[int, _One] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def reading(self) -> int:
        """Prompts that are being read."""
        return sum(1 for one in self._running.values() if one.tokens is None)

    def layers(self) -> list[Any]:
        """Fresh caches of the model, as this lane fills them."""
        return self._quantised(make_prompt_cache(self._model, self._options.max_kv_size))

    def start(self, sequence: Sequence, rules: Rules, layers: list[Any] | None, cached: int, *, guess: bool) -> None:
        """Take an answer; its prompt is read from the token after the cached ones."""
        one = _One(sequence, rules, self.layers() if layers is None else layers, cached)
        if guess and self._drafter is not None:
            one.draft_layers = make_prompt_cache(self._drafter.model)
            one.depth = sequence.work.wishes.depth or self._drafter.tokens
        self._running[sequence.work.id] = one

    def drop(self, identity: int) -> bool:
        """Let an answer go; what was computed is kept. False: it is not here."""
        one = self._running.pop(identity, None)
        if one is None:
            return False
        self._finish(one)
        return True

    def step(self, *, others: int) -> None:
        """A piece of one prompt, and the next tokens of each answer; ``others`` are computed elsewhere.

        Raises:
            Exception: the computation itself failed.
        """
        answers = others + len(self._running) - self.reading
        pieces = 0
        for one in list(self._running.values()):
            try:
                if one.tokens is not None:
                    self._write(one)
                elif pieces < _FOLLOWED_AT_ONCE:
                    pieces += 1
                    self._read(one, answers)
            except Exception as error:
                if not one.draft_layers:
                    raise
                self._without_drafts(one, error)

    def close(self) -> None:
        """Let all go."""
        for one in self._running.values():
            if one.tokens is not None:
                one.tokens.close()
        self._running.clear()

    def _read(self, one: _One, answers: int) -> None:
        """A piece of the prompt, first into the draft model, then into the model itself."""
        prompt = one.sequence.work.prompt
        last = len(prompt) - 1
        size = self._pace.size(answers=answers, prompts=1)
        began = time.perf_counter()
        if one.draft_layers and one.draft_read < last:
            assert self._drafter is not None
            count = min(size, last - one.draft_read)
            self._feed(self._drafter.model, prompt[one.draft_read : one.draft_read + count], one.draft_layers)
            one.draft_read += count
            return
        if one.read < last:
            count = min(size, last - one.read)
            self._feed(self._model, prompt[one.read : one.read + count], one.layers)
            one.layers = self._quantised(one.layers)
            one.read += count
            self._pace.learn(count, time.perf_counter() - began)
            one.sequence.read(one.read)
        if one.read >= last:
            one.tokens = self._generator(one)
            one.sequence.read(len(prompt))

    def _feed(self, model: Any, tokens: tuple[int, ...], layers: list[Any]) -> None:
        with mx.stream(generation_stream):
            model(mx.array(tokens)[None], cache=layers)
            mx.eval([layer.state for layer in layers])
            mx.clear_cache()

    def _generator(self, one: _One) -> Generator[Any, None, None]:
        work = one.sequence.work
        last = mx.array(work.prompt[-1:], mx.uint32)
        options: dict[str, Any] = {"max_tokens": work.most, "sampler": one.rules.sampler}
        if self._options.kv_bits is not None:
            group = self._options.kv_group_size
            options |= {"kv_bits": self._options.kv_bits, "kv_group_size": group, "quantized_kv_start": 0}
        if one.draft_layers:
            assert self._drafter is not None
            layers = [*one.layers, *one.draft_layers]
            options |= {"num_draft_tokens": one.depth, "prompt_cache": layers}
            guessing: Generator[Any, None, None] = speculative_generate_step(
                last, self._model, self._drafter.model, **options
            )
            return guessing
        before = mx.array(work.prompt[:-1], mx.uint32)
        options["logits_processors"] = [_after(before, processor) for processor in one.rules.processors] or None
        return _undrafted(generate_step(last, self._model, prompt_cache=one.layers, **options))

    def _write(self, one: _One) -> None:
        """The next tokens: one, or as many as were guessed right."""
        sequence = one.sequence
        assert one.tokens is not None
        for _ in range(one.depth + 1 if one.draft_layers else 1):
            if sequence.failure is not None:
                self.drop(sequence.work.id)
                sequence.fail(sequence.failure)
                return
            token, scores, drafted = next(one.tokens)
            sequence.drafted += bool(drafted)
            one.said.append(token)
            try:
                over = self._over(sequence, int(token), scores)
            except Exception as error:  # noqa: BLE001  a fault in its own text or scores ends it alone
                note(sequence, error, "spelling its tokens")
                continue
            if over:
                return
            if not drafted:
                return

    def _without_drafts(self, one: _One, error: Exception) -> None:
        """Guessing ahead failed: this answer ends, nothing of it is kept, and nothing is guessed from now on."""
        if self._drafter is not None:
            _log.warning("[spec] off (%s: %s)", type(error).__name__, error)
        self._drafter = None
        self._running.pop(one.sequence.work.id, None)
        one.sequence.fail(note(one.sequence, error, "guessing ahead"))

    def _over(self, sequence: Sequence, token: int, scores: Any) -> bool:
        """Take a token; True: the answer has ended with it."""
        work = sequence.work
        if token in self._ends and not work.wishes.ignore_eos:
            reason: str | None = "stop"
        else:
            top = work.wishes.top_logprobs
            stopped = sequence.add(token, None if top is None else self._scoring.of(scores, token, top))
            reason = "stop" if stopped else "length" if sequence.said >= work.most else None
        if reason is None:
            return False
        sequence.end(reason)
        self.drop(work.id)
        return True

    def _finish(self, one: _One) -> None:
        """Roll back what was guessed, and keep what is sure."""
        if one.tokens is not None:
            one.tokens.close()
        prompt = one.sequence.work.prompt
        fed = list(prompt[: one.read]) if one.tokens is None else [*prompt, *one.said]
        self._keep(fed, one.layers)

    def _quantised(self, layers: list[Any]) -> list[Any]:
        bits, group = self._options.kv_bits, self._options.kv_group_size
        if bits is None:
            return layers
        return [
            layer.to_quantized(group_size=group, bits=bits) if hasattr(layer, "to_quantized") else layer
            for layer in layers
        ]


def _undrafted(tokens: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Tokens in the form in which guessed ones come; closing this closes the other."""
    with closing(tokens):
        for token, scores in tokens:
            yield token, scores, False


def _after(before: Any, processor: Any) -> Any:
    """A processor that hears the whole prompt, of which the generator knows the last token alone."""

    def processed(tokens: Any, logits: Any) -> Any:
        return processor(mx.concatenate([before, tokens.astype(mx.uint32)]), logits)

    return processed
