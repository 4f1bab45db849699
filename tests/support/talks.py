"""Conversations of some length, as a client holds them: it remembers what was said, and goes on."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.daemon import Daemon
from tests.wire.asking import CHAT, Answer, ask

_WORDS = ("the", "old", "river", "ran", "past", "a", "mill", "where", "nobody", "had", "lived", "and", "birds", "sang")


def text_of(words: int, seed: str) -> str:
    """So many words, the same for a seed, and unlike those of another from the first on."""
    chosen = random.Random(seed)
    return f"{seed} " + " ".join(chosen.choice(_WORDS) for _ in range(words - 1))


@dataclass
class Talk:
    """One conversation with one model.

    Attributes:
        name: as its client calls it; None: it calls it nothing.
        answers: what was answered, whole.
        token: of its caller; None: nobody asks for one.
    """

    daemon: Daemon
    model: str
    first: str
    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    token: str | None = None

    def say(self, text: str | None = None) -> str:
        """One turn; what the daemon says of the conversation: ``hit``, ``restored``, ``prefix`` or ``cold``."""
        self.messages.append({"role": "user", "content": text or (self.first if not self.messages else "Go on.")})
        outcome = self.again()
        self.messages.append(self.answers[-1].json["choices"][0]["message"])
        return outcome

    def again(self) -> str:
        """The last question once more, without remembering the answer in the conversation."""
        body = {"model": self.model, "messages": self.messages, "max_tokens": 8, "temperature": 0, **self.options}
        headers = {} if self.name is None else {"x-session-id": self.name}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        began = time.monotonic()
        answer = ask(self.daemon, CHAT, body, headers=headers)
        self.seconds = time.monotonic() - began
        assert answer.status == 200, answer.body
        self.answers.append(answer)
        return str(answer.headers.get("x-enginehouse-session"))

    @property
    def text(self) -> str:
        """The last answer's text."""
        return str(self.answers[-1].json["choices"][0]["message"]["content"])

    @property
    def cached(self) -> int:
        """Tokens of the last prompt that the slot had already, by the engine's word."""
        return int(self.answers[-1].json["timings"]["cache_n"])
