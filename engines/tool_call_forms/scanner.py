"""Walks through an answer from left to right and parts calls from text.

The same walk serves a whole answer and one that still arrives: a decision is made only when nothing that may follow
can change it, so any chunking gives the same segments. What is shown rather than meant is passed over: code fences,
inline code, the strings of JSON that is an answer by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from engines.tool_call_forms import channels, marks, tails
from engines.tool_call_forms.channels import Header
from engines.tool_call_forms.cursor import Block, Cursor
from engines.tool_call_forms.shown import JsonAnswer, code_span_end, fence_line
from engines.tool_call_forms.tails import Tail
from engines.tool_call_forms.toolbox import Toolbox
from engines.tool_call_forms.wrapped import marked_block

_SPOT = re.compile(r"\n|`+|[<\[{]|>>>|functools")
_LINE_REST = re.compile(r"[ \t]{0,32}\n")
_BLANK = re.compile(r"[^\S\n]*\n?")
_TOKEN = marks.one_of(marks.TOKENS)
_TOKEN_BEGINNINGS = marks.beginnings(marks.TOKENS)
_SPOT_BEGINNINGS = marks.beginnings((marks.RECIPIENT, "functools"))
_AFTER_CALL = marks.one_of((*marks.CLOSERS, *marks.END_OF_TURN))
_ANY_MARK = (*marks.CLOSERS, *marks.END_OF_TURN, *(word for word in marks.OPENERS if word[0] in "<["))
_CLOSERS = frozenset(marks.CLOSERS)
_ENDS = frozenset(marks.END_OF_TURN)
_HEADERS = (*marks.HARMONY, *marks.FUNCTIONARY)
_JSON_START = re.compile(r"\{\s*[\"}]|\[\s*[\"{\[]")
_JSON_MAYBE = re.compile(r"[{\[]\s*\Z")
_NAME_PREFIX = re.compile(r"call:|functions\.|name=[\"']?")
_BEFORE_NAME = marks.one_of(f"{word[:end]}\n" for word in ("call:", "functions.", 'name="') for end in range(1, 11))
_WORD = re.compile(r"[^\s()\[\]{}<>\"'`,;]{1,320}")
_NUMBERED = re.compile(r":\d{0,9}\Z")
_FIXED_WORDS = ("Action:", "commentary", "analysis", "function", "assistant")
_HARMONY_FOLLOWS = {"commentary": " to=", "analysis": " to=", "assistant": "<|ch"}
_WORD_BEGINNINGS = marks.beginnings((*_FIXED_WORDS, "functions.", "call:")) | {"functions.", "call:", *_FIXED_WORDS}
_AFTER_NAME = ("<arg_key>", marks.ARGS, marks.KIMI_ARGUMENT, *marks.DEEPSEEK_SEPARATOR, *marks.HARMONY, "to=")
_LOOK_AHEAD = 112
"""Characters that any pattern looks at behind the place where it fails; more where a name is longer."""
_FENCE_LINE = 320
_CHEAP = 256
_DEBT = 65_536
_DEBT_SHARE = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the answer: text to keep, a marker that is text only if there is no call, or a block of calls."""

    text: str
    marker: bool = False
    block: Block | None = None


class Scanner:
    """The walk over one answer.

    ``scan`` takes what is not decided yet; it gives the segments that are, and how far they reach.
    """

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self._margin = max(marks.LONGEST, tools.longest) + _LOOK_AHEAD
        self._segments: list[Segment] = []
        self._fence = ""
        self._json: JsonAnswer | None = None
        self._line_start = True
        self._ticks = 0
        self._fresh = True
        self._called = False
        self._debt = 0
        self._offset = 0

    def scan(self, text: str, *, final: bool) -> tuple[list[Segment], int]:
        """Segments of the decided part of ``text``, and its length. With ``final`` all of it is decided."""
        self._segments = []
        cursor = Cursor(text)
        pos = 0
        while pos < len(text):
            if self._fence:
                step = self._in_fence(text, pos, final=final)
            elif self._json is not None:
                step = self._in_json(text, pos)
            else:
                step = self._in_text(cursor, pos, final=final)
            if step is None:
                break
            pos = step
        self._offset += pos
        return self._segments, pos

    def _keep(self, text: str) -> None:
        if text:
            self._segments.append(Segment(text))
            if self._fresh and not text.isspace():
                self._fresh = False

    def _keep_words(self, text: str, start: int, end: int) -> int:
        """Keeps text that does not end a line."""
        self._keep(text[start:end])
        self._line_start = False
        return end

    def _keep_span(self, text: str, start: int, end: int) -> int:
        """Keeps what was looked through and holds no call."""
        self._keep(text[start:end])
        self._line_start = text.endswith("\n", start, end)
        self._ticks = 0
        return end

    def _in_fence(self, text: str, pos: int, *, final: bool) -> int | None:
        """Text inside a code fence, line by line, until its closing line."""
        if self._line_start:
            closing = fence_line(text, pos, self._fence, final=final)
            if closing is None:
                return None
            if closing > pos:
                self._fence = ""
                return self._keep_span(text, pos, closing)
        end = text.find("\n", pos) + 1
        self._line_start = end > 0
        end = end or len(text)
        self._keep(text[pos:end])
        return end

    def _in_json(self, text: str, pos: int) -> int | None:
        assert self._json is not None
        end, over = self._json.walk(text, pos)
        if over:
            self._json = None
        if end == pos and not over:
            return None
        self._keep(text[pos:end])
        self._line_start = False
        return end

    def _in_text(self, cursor: Cursor, pos: int, *, final: bool) -> int | None:
        text = cursor.text
        if self._line_start:
            blank = _BLANK.match(text, pos)
            assert blank is not None
            if blank.end() > pos:
                self._keep(blank.group())
                return blank.end()
            step = self._at_line_start(cursor, pos, final=final)
            if step != pos:
                return step
        spot = _SPOT.search(text, pos)
        if spot is None:
            end = len(text) if final else len(text) - _begun(text, pos)
            return self._keep_words(text, pos, end) if end > pos else None
        if spot.start() > pos:
            return self._keep_words(text, pos, spot.start())
        return self._at_spot(cursor, spot, final=final)

    def _at_spot(self, cursor: Cursor, spot: re.Match[str], *, final: bool) -> int | None:
        text, pos, end = cursor.text, spot.start(), spot.end()
        char = text[pos]
        if char == "\n":
            return self._keep_span(text, pos, end)
        undecided = not final and self._spot_undecided(text, pos, end)
        token = _TOKEN.match(text, pos)
        if token is not None:
            return self._at_token(cursor, pos, token.group(), final=final)
        if undecided:
            return None
        if char in "{[" and not self._ticks and _JSON_START.match(text, pos):
            self._json = JsonAnswer()
            return pos
        if char == "`" and self._ticks in {0, end - pos}:
            self._ticks = end - pos - self._ticks
        return self._keep_words(text, pos, end)

    def _spot_undecided(self, text: str, pos: int, end: int) -> bool:
        """Whether more text can still make something else of a spot that is no marker yet."""
        if text[pos] == "`":
            return end == len(text)
        if len(text) - pos < marks.LONGEST and text[pos:] in _TOKEN_BEGINNINGS:
            return True
        return text[pos] in "{[" and not self._ticks and _JSON_MAYBE.match(text, pos) is not None

    def _at_token(self, cursor: Cursor, pos: int, token: str, *, final: bool) -> int | None:
        text = cursor.text
        if self._ticks:
            end = code_span_end(text, pos, self._ticks, final=final)
            if end is None:
                return None
            if end > pos:
                return self._keep_span(text, pos, end)
            self._ticks = 0
        cursor.pos = cursor.far = pos
        found: Block | Header | None
        if token in _ENDS:
            found = _turn_end(cursor, token)
        elif token in _CLOSERS:
            found = _orphan(cursor, token, line_start=self._line_start)
        elif token in marks.HARMONY:
            found = channels.harmony(cursor)
        elif token in marks.FUNCTIONARY or token == marks.RECIPIENT:
            found = channels.functionary(cursor)
        else:
            cursor.goto(pos + len(token))
            found = marked_block(cursor, token)
        step = self._settle(cursor, pos, found, final=final)
        if step == pos:
            if self._called and self._cut_call(text, pos + len(token), cursor.far):
                self._segments.append(Segment(text[pos:], marker=True))
                return len(text)
            return self._keep_words(text, pos, pos + 1)
        return step

    def _cut_call(self, text: str, pos: int, far: int) -> bool:
        """Whether the text ends behind a marker and before the name of the tool."""
        if far + self._margin <= len(text):
            return False
        rest = text[pos:].strip()
        if not rest or rest[0] in "{[<" or _BEFORE_NAME.match(rest + "\n"):
            return True
        name = _NAME_PREFIX.sub("", rest, count=1).split("<", 1)[0].rstrip('">')
        return name in self._tools.starts

    def _settle(self, cursor: Cursor, pos: int, found: Block | Header | None, *, final: bool) -> int | None:
        """Takes over what was found at ``pos``; None if more text may change it, ``pos`` if it is no call."""
        text = cursor.text
        if isinstance(found, Block):
            cursor.pos = found.end
            _pass_closers(cursor, found)
        if not final and cursor.far + self._margin > len(text):
            return None
        if isinstance(found, Header):
            self._segments.append(Segment(text[pos : found.end], marker=True))
            self._line_start = True
            return found.end
        if found is None:
            return self._refuse(cursor, pos)
        found.calls = [call for call in found.calls if call.name in self._tools]
        if not found.calls:
            return self._keep_span(text, pos, found.end)
        self._segments.append(Segment(text[pos : found.end], block=found))
        self._line_start, self._fresh, self._called = True, False, True
        return found.end

    def _refuse(self, cursor: Cursor, pos: int) -> int:
        """Goes on behind what was refused if too much was looked at in vain, so that time stays linear."""
        cost = cursor.far - pos
        if cost > _CHEAP:
            self._debt += cost
        if self._debt > _DEBT + _DEBT_SHARE * (self._offset + pos):
            self._debt -= cost
            return self._keep_span(cursor.text, pos, cursor.far)
        return pos

    def _at_line_start(self, cursor: Cursor, pos: int, *, final: bool) -> int | None:
        """What only the beginning of a line can be; ``pos`` if it is none of it."""
        char = cursor.text[pos]
        if char in "`~":
            return self._fence_opening(cursor, pos, final=final)
        if char in "{[":
            return self._json_line(cursor, pos, final=final)
        word = _WORD.match(cursor.text, pos)
        return pos if word is None else self._word_line(cursor, word, final=final)

    def _fence_opening(self, cursor: Cursor, pos: int, *, final: bool) -> int | None:
        text = cursor.text
        opening = tails.FENCE.match(text, pos)
        if not final and (opening is None or opening.end() == len(text)) and "\n" not in text[pos:]:
            rest = text[pos:]
            return (
                None if len(rest) < _FENCE_LINE and (rest.startswith(("```", "~~~")) or set(rest) <= set("`~")) else pos
            )
        if opening is None:
            return pos
        if opening[2].strip().lower() in tails.CALL_LABELS:
            step = self._try_tail(cursor, pos, lambda: tails.fenced(cursor, self._tools), final=final)
            if step != pos:
                return step
        self._fence = opening[1]
        self._keep(text[pos : opening.end()])
        return opening.end()

    def _json_line(self, cursor: Cursor, pos: int, *, final: bool) -> int | None:
        if _TOKEN.match(cursor.text, pos):
            return pos
        step = self._try_tail(cursor, pos, lambda: tails.bare_json(cursor, self._tools), final=final)
        if step == pos and self._fresh and cursor.text[pos] == "[":
            step = self._try_tail(cursor, pos, self._whole_message(cursor), final=final)
        return step

    def _whole_message(self, cursor: Cursor) -> Callable[[], Tail]:
        return lambda: tails.unmarked(cursor, self._tools, whole=self._fresh)

    def _word_line(self, cursor: Cursor, match: re.Match[str], *, final: bool) -> int | None:
        text, pos, end, word = cursor.text, match.start(), match.end(), match.group()
        name = _NUMBERED.sub("", word.removeprefix("functions.").removeprefix("call:"))
        if not final and self._undecided(text, end, word, name):
            return None
        block: Callable[[Cursor], Block | Header | None] | None = None
        if word == "Action:":
            block = tails.action
        elif _HARMONY_FOLLOWS.get(word, "\n") == text[end : end + 4]:
            block = channels.harmony
        elif word in self._tools and text[end : end + 16].lstrip().startswith("<arg_key>"):
            block = tails.unopened_glm
        if block is not None:
            cursor.pos = cursor.far = pos
            return self._settle(cursor, pos, block(cursor), final=final)
        if word in self._tools and text.startswith("(", end):
            return self._try_tail(cursor, pos, lambda: tails.prose(cursor, self._tools), final=final)
        if name in self._tools or word == "function":
            return self._try_tail(cursor, pos, self._whole_message(cursor), final=final)
        return pos

    def _undecided(self, text: str, end: int, word: str, name: str) -> bool:
        """Whether what follows the arrived part of a line's first word can still make it a call."""
        if end == len(text):
            return name in self._tools.starts or word in _WORD_BEGINNINGS
        if name not in self._tools and word not in _FIXED_WORDS:
            return False
        rest = text[end : end + self._margin]
        if end + len(rest) < len(text):
            return False
        return not rest.strip() or any(mark.startswith(rest.strip()) for mark in _AFTER_NAME)

    def _try_tail(self, cursor: Cursor, pos: int, attempt: Callable[[], Tail], *, final: bool) -> int | None:
        """Tries a form that must end the message; what turned out to have text behind it is kept at once."""
        cursor.pos = cursor.far = pos
        tail = attempt()
        if tail.block is not None:
            return self._settle(cursor, pos, tail.block, final=final)
        if not final and cursor.far + self._margin > len(cursor.text):
            return None
        if tail.end > pos:
            return self._keep_span(cursor.text, pos, tail.end)
        return self._refuse(cursor, pos)


def _begun(text: str, pos: int) -> int:
    """Characters at the end of ``text`` that may begin a word-like marker."""
    longest = min(len("functools") - 1, len(text) - pos)
    return next((size for size in range(longest, 0, -1) if text[len(text) - size :] in _SPOT_BEGINNINGS), 0)


def _turn_end(cursor: Cursor, token: str) -> Header | None:
    """An end-of-turn token, if it is one: at the end of the text, or before the next message's header."""
    cursor.goto(cursor.pos + len(token))
    end = cursor.pos
    if tails.ends_message(cursor):
        return Header(len(cursor.text))
    cursor.pos = end
    cursor.space()
    return Header(end) if cursor.take(_HEADERS) else None


def _orphan(cursor: Cursor, token: str, *, line_start: bool) -> Header | None:
    """A closing marker without its opening one, if it closes the message or has a line of its own."""
    cursor.goto(cursor.pos + len(token))
    end = cursor.pos
    alone = cursor.match(_LINE_REST) is not None
    cursor.pos = end
    return Header(end) if (line_start and alone) or tails.ends_message(cursor) else None


def _pass_closers(cursor: Cursor, block: Block) -> None:
    """Passes closing markers and end-of-turn tokens behind a block, expected or not."""
    while True:
        cursor.space()
        mark = cursor.match(_AFTER_CALL)
        if mark is None:
            break
        block.end = cursor.pos
        if mark.group() in _CLOSERS:
            block.native = False
    if cursor.take_half(_ANY_MARK):
        block.end = cursor.pos
        block.native = False
