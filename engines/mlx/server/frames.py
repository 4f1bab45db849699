"""The bytes of an answer: server-sent events for a stream, one document for a whole answer. Pure."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import orjson

from engines.mlx.server.answer import ChoiceAnswer, Delta, chat_logprobs, completion_logprobs, timings, usage
from engines.mlx.server.asked import Asked
from engines.mlx.server.problems import RequestError
from engines.mlx.server.work import Done, Event, Failed, Piece, Progress, Scored

DONE_FRAME = b"data: [DONE]\n\n"
# A client that reads slowly, or a busy machine: then pieces of one choice go out together.
_PILED_UP = 8


class Answer:
    """All choices of one request, as frames.

    Args:
        asked: the request.
        model: the name that the answer carries.
        choices: one for each prompt and choice, in order.
    """

    def __init__(self, asked: Asked, model: str, choices: Sequence[ChoiceAnswer]) -> None:
        self._asked = asked
        self._chat = asked.chat is not None
        self._choices = choices
        prefix = "chatcmpl-" if self._chat else "cmpl-"
        self._about = {
            "created": int(time.time()),
            "id": prefix + secrets.token_hex(16),
            "model": model,
            "system_fingerprint": "enginehouse-mlx",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
        }
        # What is the same in every frame of text is written once.
        self._tail = b',"finish_reason":null}],' + orjson.dumps(self._about)[1:] + b"\n\n"
        self._offsets = [0] * len(choices)
        self._left = len(choices)

    @property
    def complete(self) -> bool:
        """Every choice has ended."""
        return self._left == 0

    def frames(self, events: Sequence[tuple[int, Event]]) -> bytes:
        """The frames of some events, in order; text of one choice that has piled up goes into few frames.

        Raises:
            RequestError: one of them is the failure of its choice.
        """
        made: list[bytes] = []
        for index, event in _joined(events) if len(events) > _PILED_UP else events:
            choice = self._choices[index]
            if isinstance(event, Piece):
                made += self._piece(choice, event)
            elif isinstance(event, Done):
                made += self._end(choice, event)
            elif isinstance(event, Failed):
                raise event.error
            elif self._asked.wishes.progress:
                made.append(self._frame(self._shape(choice, self._empty()), prompt_progress=_progress(event)))
        return b"".join(made)

    def _piece(self, choice: ChoiceAnswer, piece: Piece) -> list[bytes]:
        deltas = choice.piece(piece)
        if not piece.scores:
            return [self._quick(choice, delta) for delta in deltas]
        scored = self._scored(choice, piece.scores)
        frames = [self._frame(self._shape(choice, delta)) for delta in deltas[:-1]]
        last = deltas[-1] if deltas else self._empty()
        return [*frames, self._frame(self._shape(choice, last) | {"logprobs": scored})]

    def _scored(self, choice: ChoiceAnswer, scores: tuple[Scored, ...]) -> dict[str, Any]:
        if self._chat:
            return chat_logprobs(scores)
        offset = self._offsets[choice.index]
        self._offsets[choice.index] = offset + sum(len(one.chosen.text) for one in scores)
        return completion_logprobs(scores, offset)

    def _end(self, choice: ChoiceAnswer, done: Done) -> list[bytes]:
        frames = [self._quick(choice, delta) for delta in choice.end(done)]
        self._left -= 1
        last = self._shape(choice, self._empty(), choice.reason)
        if done.stop is not None:
            last["stop_reason"] = done.stop
        tail: dict[str, Any] = {"timings": timings(done.counts)}
        if not self._chat:
            tail["usage"] = usage([done.counts])
        frames.append(self._frame(last, **tail))
        if self._left == 0 and self._chat and self._asked.wishes.include_usage:
            counts = [one.counts for one in self._choices if one.counts is not None]
            frames.append(self._frame(None, usage=usage(counts), timings=timings(counts[0])))
        if self._left == 0:
            frames.append(DONE_FRAME)
        return frames

    def _quick(self, choice: ChoiceAnswer, delta: Delta) -> bytes:
        if self._chat:
            return b'data: {"choices":[{"index":%d,"delta":%b%b' % (choice.index, orjson.dumps(delta), self._tail)
        text = orjson.dumps(delta["text"])
        return b'data: {"choices":[{"index":%d,"text":%b,"logprobs":null%b' % (choice.index, text, self._tail)

    def _empty(self) -> Delta:
        return {} if self._chat else {"text": ""}

    def _shape(self, choice: ChoiceAnswer, delta: Delta, reason: str | None = None) -> dict[str, Any]:
        body = {"delta": delta} if self._chat else {**delta, "logprobs": None}
        return {"index": choice.index, **body, "finish_reason": reason}

    def _frame(self, shape: dict[str, Any] | None, **more: Any) -> bytes:
        return b"data: " + orjson.dumps({"choices": [] if shape is None else [shape], **self._about, **more}) + b"\n\n"


def error_frame(error: RequestError) -> bytes:
    """The frame that ends a stream whose request failed."""
    return b"data: " + orjson.dumps(error.body) + b"\n\n"


def _joined(events: Sequence[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """Pieces of one choice that follow each other made one."""
    joined: list[tuple[int, Event]] = []
    for index, event in events:
        if isinstance(event, Piece) and joined and joined[-1][0] == index and isinstance(joined[-1][1], Piece):
            last = joined[-1][1]
            joined[-1] = (index, Piece(last.text + event.text, last.scores + event.scores))
        else:
            joined.append((index, event))
    return joined


def _progress(event: Progress) -> dict[str, int]:
    done = {"total": event.total, "cache": event.cached, "processed": event.processed}
    return {**done, "time_ms": round(event.seconds * 1000)}
