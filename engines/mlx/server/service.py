"""What the server does, without HTTP: from a body to events. Lives on the event loop."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from engines.mlx.server.answer import ChoiceAnswer
from engines.mlx.server.asked import Asked, ModelLimits
from engines.mlx.server.latches import Latches, broke_grammar
from engines.mlx.server.mailbox import Mailbox
from engines.mlx.server.options import Options
from engines.mlx.server.problems import UNAVAILABLE, RequestError, too_long
from engines.mlx.server.prompting import Prompter
from engines.mlx.server.tally import Tally
from engines.mlx.server.thread import EngineThread, MakeEngine
from engines.mlx.server.work import Event, Work

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Events of one request that nobody has read, beyond which its answers wait.
MOST_UNREAD = 256
State = Literal["loading", "ready", "broken", "ended"]


@dataclass(frozen=True, slots=True)
class Form:
    """What is known of a chat beside its tokens.

    Attributes:
        thinking: its prompt has opened the model's thoughts.
        matcher: holds answers to a form; each gets a copy.
        session: the client's name for what it belongs to.
    """

    thinking: bool = False
    matcher: Any = None
    session: str | None = None


PLAIN = Form()


@dataclass(slots=True)
class Running:
    """A request whose answers are computed: its choices, and the mailbox of their events."""

    asked: Asked
    choices: list[ChoiceAnswer]
    mailbox: Mailbox


class Service:
    """One model and its requests.

    Attributes:
        draining: nothing new is taken.
        tally: what has been done since the start.
    """

    def __init__(self, options: Options, make: MakeEngine) -> None:
        self.options = options
        self.draining = False
        self.tally = Tally()
        self.changed = asyncio.Event()
        self._ids = itertools.count(1)
        self._mail: dict[int, tuple[Mailbox, int]] = {}
        # One thread: templates and tokenizers are not made for several.
        self._words = ThreadPoolExecutor(1, thread_name_prefix="words")
        self._prompter: Prompter | None = None
        self._latches = Latches()
        self.engine = EngineThread(make, self._deliver, self._changed)

    @property
    def limits(self) -> ModelLimits:
        """What requests are checked against.

        Raises:
            RequestError: the model is not there yet, or not any more.
        """
        self.ready()
        facts = self.engine.engine.loaded.facts
        return ModelLimits(self.options.alias, facts.vocabulary, facts.context, facts.has_template)

    @property
    def prompter(self) -> Prompter:
        """Makes prompts for the model; it is there once the model is."""
        if self._prompter is None:
            self._prompter = Prompter(self.engine.engine.loaded)
        return self._prompter

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return not self._mail

    @property
    def answering(self) -> int:
        """Answers that are being computed, or wait to be."""
        return len(self._mail)

    def ready(self) -> None:
        """Return if requests are taken.

        Raises:
            RequestError: 503 with what is the matter.
        """
        state, reason = self.engine.state, self.engine.reason
        if state == "ready" and not self.draining:
            return
        message = {
            "loading": "Loading model",
            "ready": "the server is stopping, and takes no more requests",
            "broken": f"the engine broke: {reason}",
            "ended": "the server is stopping, and takes no more requests",
        }[state]
        raise RequestError(message, status=UNAVAILABLE, kind="unavailable_error")

    async def in_words(self, function: Callable[..., T], *args: Any, **more: Any) -> T:
        """The value of a function that works with templates and tokens, computed off the loop."""
        call = functools.partial(function, *args, **more)
        return await asyncio.get_running_loop().run_in_executor(self._words, call)

    @contextmanager
    def running(self, asked: Asked, prompts: Sequence[tuple[int, ...]], form: Form) -> Iterator[Running]:
        """Have the answers computed while the block runs; what is not done at its end is cancelled.

        Raises:
            RequestError: a prompt leaves no room in the context.
        """
        self.ready()
        wishes = asked.wishes
        works = [self._work(asked, prompt, form) for prompt in prompts for _ in range(wishes.choices)]
        mailbox = Mailbox()
        marks = self.prompter.marks
        choices = [ChoiceAnswer(asked, index, marks, thinking=form.thinking) for index in range(len(works))]
        for index, work in enumerate(works):
            self._mail[work.id] = mailbox, index
            self.engine.submit(work)
        self.tally.began(len(works))
        try:
            yield Running(asked, choices, mailbox)
        finally:
            for work in works:
                if self._mail.pop(work.id, None) is not None:
                    self.engine.cancel(work.id)
                    self.tally.left()
            for choice in choices:
                if choice.counts is not None:
                    self.tally.ended(choice.counts)
                self._look_at_calls(choice, form)

    async def events(self, running: Running) -> list[tuple[int, Event]]:
        """What has come for a request; its answers go on if they had to wait for this."""
        mailbox = running.mailbox
        taken = await mailbox.take()
        paused, mailbox.paused = mailbox.paused, ()
        for identity in paused:
            self.engine.resume(identity)
        return taken

    def close(self) -> None:
        """Let the worker thread go."""
        self._words.shutdown(wait=False, cancel_futures=True)

    def _work(self, asked: Asked, prompt: tuple[int, ...], form: Form) -> Work:
        context = self.engine.engine.loaded.facts.context
        room = context - len(prompt)
        if room < 1:
            raise too_long(len(prompt), context)
        wanted = asked.wishes.max_tokens
        most = room if wanted is None else min(wanted, room)
        matcher = None if form.matcher is None else form.matcher.deep_copy()
        sequential = form.session in self._latches
        return Work(next(self._ids), prompt, most, asked.wishes, matcher, form.thinking, sequential)

    def _look_at_calls(self, choice: ChoiceAnswer, form: Form) -> None:
        """A call that lacks what its grammar requires: its session is computed one token at a time from now on."""
        found, session = choice.recovered, form.session
        if found is None or session is None:
            return
        latched = session in self._latches
        missing, prose = bool(found.missing_required), found.provenance == "prose"
        if broke_grammar(missing=missing, prose=prose, asked=form.matcher is not None, latched=latched):
            _log.warning("a call lacks %s: its session goes on sequentially", ", ".join(found.missing_required))
            self._latches.set(session)

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        for identity, event in events:
            place = self._mail.get(identity)
            if place is not None:
                mailbox, choice = place
                mailbox.put(choice, event)
                if len(mailbox) > MOST_UNREAD and not mailbox.paused:
                    self._pause(mailbox)
                if event.last:
                    del self._mail[identity]

    def _pause(self, mailbox: Mailbox) -> None:
        """Its reader is behind: its answers are set aside, and the others have the engine."""
        mailbox.paused = tuple(identity for identity, (box, _) in self._mail.items() if box is mailbox)
        self.tally.pauses += 1
        for identity in mailbox.paused:
            self.engine.pause(identity)

    def _changed(self) -> None:
        self.changed.set()
