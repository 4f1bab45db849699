"""Tool calls that an engine left in the text of an answer: `recover` for a whole one, `Recoverer` for one in chunks.

Engines parse the tool calls of the models that they know; for others the call stays in the text, in the notation of
the model's family, often damaged. Both functions see the text and the offered tools only, never a family. Only offered
tools are called; a call is taken only where it can't be mistaken for an example, a draft or a word about calls; and
what was lost is never invented. Nothing in here raises, whatever text and tools hold, and time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from engines.tool_call_forms.cursor import Block
from engines.tool_call_forms.scanner import Scanner, Segment
from engines.tool_call_forms.toolbox import Toolbox, toolbox

Provenance = Literal["native", "salvaged", "prose"]
_EAGER_WORK = 8_192
_WORK_SHARE = 4
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an offered tool; the arguments are JSON values in the types that the tool declares."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an answer holds.

    Attributes:
        calls: in the order of the text.
        content: the text without the calls and their markers; the text itself, untouched, if there are none.
        complete: False if the text was cut inside the last call and something of it was lost: it must not be run.
        missing_required: properties that a tool requires and its call does not have: it must not be run either.
        provenance: ``native``: in the markers of its format and strictly so; ``salvaged``: without markers, repaired or
            cut; ``prose``: written like a function call in plain text; None without calls.
    """

    calls: tuple[Call, ...]
    content: str
    complete: bool
    missing_required: tuple[str, ...]
    provenance: Provenance | None


def recover(text: str, tools: object, reasoning: str | None = None) -> Recovered:
    """The calls in ``text`` and the rest of it.

    Args:
        text: the answer as the engine returned it.
        tools: tools as in an OpenAI request; what is no tool is passed over.
        reasoning: the answer's separate reasoning. It is never searched: what was only considered is not called.
    """
    del reasoning
    return _recover(text, toolbox(tools))


class Recoverer:
    """Recovers from an answer that arrives in chunks.

    Attributes:
        rest: after `end`, the part of the content that `feed` has not given.
    """

    def __init__(self, tools: object, reasoning: str | None = None) -> None:
        del reasoning
        self._tools = toolbox(tools)
        self._scanner = Scanner(self._tools)
        self._passage = _Passage()
        self._chunks: list[str] = []
        self._held: list[str] = []
        self._held_length = 0
        self._next_look = 0
        self._length = 0
        self._work = 0
        self._passed = 0
        self.rest = ""

    def feed(self, chunk: str) -> str:
        """Takes the next chunk and gives the text that is certain to be content and was not given yet.

        All that was given is the beginning of the content that `end` gives. Costs a constant time per character.
        """
        self._chunks.append(chunk)
        if not self._tools.schemas:
            self._passed += len(chunk)
            return chunk
        self._held.append(chunk)
        self._held_length += len(chunk)
        self._length += len(chunk)
        if self._held_length < self._next_look:
            return ""
        held = "".join(self._held)
        segments, decided = self._scanner.scan(held, final=False)
        self._work += len(held)
        self._held = [held[decided:]]
        self._held_length -= decided
        eager = self._work + self._held_length <= _EAGER_WORK + _WORK_SHARE * self._length
        self._next_look = 0 if eager else int(self._held_length * _GROWTH)
        passed = self._passage.take(segments)
        self._passed += len(passed)
        return passed

    def end(self) -> Recovered:
        """The result for the whole text, the same as `recover` gives for it."""
        recovered = _recover("".join(self._chunks), self._tools)
        self.rest = recovered.content[self._passed :]
        return recovered


class _Passage:
    """The way of text to the reader: knows which text is certain to be content.

    A marker that stands before the first call is content if no call comes, so it and all behind it wait. White space at
    the beginning and before what comes next waits too, since it goes if nothing but calls is around it.
    """

    def __init__(self) -> None:
        self._called = False
        self._begun = False
        self._waiting: list[Segment] = []
        self._space: list[str] = []

    def take(self, segments: Iterable[Segment]) -> str:
        """Text that the segments set free."""
        given: list[str] = []
        for segment in segments:
            if segment.block is not None:
                waiting, self._waiting, self._called = self._waiting, [], True
                for earlier in waiting:
                    if not earlier.marker:
                        self._give(earlier.text, given)
                if not self._begun:
                    self._space.clear()
            elif self._called:
                if not segment.marker:
                    self._give(segment.text, given)
            elif segment.marker or self._waiting:
                self._waiting.append(segment)
            else:
                self._give(segment.text, given)
        return "".join(given)

    def _give(self, text: str, given: list[str]) -> None:
        solid = text.rstrip()
        if solid:
            given += (*self._space, solid)
            self._space.clear()
            self._begun = True
        if len(solid) < len(text):
            self._space.append(text[len(solid) :])


def _recover(text: str, tools: Toolbox) -> Recovered:
    blocks: list[Block] = []
    segments: list[Segment] = []
    if tools.schemas:
        segments, _ = Scanner(tools).scan(text, final=True)
        blocks = [segment.block for segment in segments if segment.block is not None]
    if not blocks:
        return Recovered((), text, complete=True, missing_required=(), provenance=None)
    calls = tuple(
        Call(call.name, tools.typed(call.name, call.arguments, as_text=call.as_text))
        for block in blocks
        for call in block.calls
    )
    missing = tuple(key for call in calls for key in tools.missing(call.name, call.arguments))
    complete = all(block.complete for block in blocks)
    return Recovered(calls, _Passage().take(segments), complete, missing, _provenance(blocks))


def _provenance(blocks: list[Block]) -> Provenance:
    if all(block.native and block.complete for block in blocks):
        return "native"
    return "prose" if all(block.prose for block in blocks) else "salvaged"
