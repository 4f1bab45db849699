"""What is known of a conversation: a keyed hash for each message boundary, and no text. Pure.

Each mark is made from the one before it and from one message, so that two conversations have a mark in common exactly
if they have all that comes before it in common too: the marks of all conversations form a tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

_MARK_BYTES = 16
_BYTES_PER_TOKEN = 4
_MOSTLY = 0.5
# A picture's data is no text: beyond this a message counts no more, in bytes.
_MOST_OF_A_MESSAGE = 2**18
# A text completion has no messages: it is parted after so many characters.
_TEXT_PIECE = 1024
# What of a body is rendered before its messages, or changes how they are.
_HEAD = ("tools", "functions", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt")


class Touch(Enum):
    """What a request that is no conversation does to slots."""

    NOTHING = "nothing"
    """It is answered without one."""
    ANY = "any"
    """The engine chooses, and one or more hold something else afterwards."""
    SEVERAL = "several"
    """The same, for a request that makes text: several choices or prompts, or a form that nobody here knows."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as far as its request tells it.

    Attributes:
        model: its model's id.
        name: hash of what its client calls it; None: it calls it nothing.
        marks: one for each boundary, from the first message to the last.
        sizes: tokens up to each mark, by a rough estimate.
    """

    model: str
    name: str | None
    marks: tuple[bytes, ...]
    sizes: tuple[int, ...]

    def common(self, other: Conversation) -> int:
        """How many marks both begin with."""
        low, high = 0, min(len(self.marks), len(other.marks))
        while low < high:
            middle = (low + high + 1) // 2
            if self.marks[middle - 1] == other.marks[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Conversation:
        """What ``document`` wrote.

        Raises:
            ValueError, LookupError, TypeError: it is nothing of the kind.
        """
        marks = tuple(bytes.fromhex(mark) for mark in document["marks"])
        sizes = tuple(int(size) for size in document["sizes"])
        name = document["name"]
        if not marks or len(marks) != len(sizes) or min(sizes) < 1 or not isinstance(name, str | None):
            raise ValueError("no conversation")
        return cls(str(document["model"]), name, marks, sizes)

    def document(self) -> dict[str, Any]:
        """As it is written to a file."""
        marks = [mark.hex() for mark in self.marks]
        return {"model": self.model, "name": self.name, "marks": marks, "sizes": list(self.sizes)}

    def share(self, marks: int) -> float:
        """Share of the whole that lies before so many marks, 0 to 1."""
        return self.sizes[marks - 1] / self.sizes[-1] if marks else 0.0

    def is_continued_by(self, other: Conversation) -> bool:
        """Whether ``other`` is this conversation later on.

        By name, where either has one, if most of it comes back: a client may call several conversations the same.
        Without names, if all of it does.
        """
        common = self.common(other)
        if self.name is not None or other.name is not None:
            return self.name == other.name and self.share(common) >= _MOSTLY
        return common == len(self.marks)


Talk = Conversation | Touch


class ConversationReader:
    """Hashes with a secret, so that who sees the marks can't test a guess of the text."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def read(self, model: str, owner: str, name: str | None, body: Mapping[str, Any]) -> Conversation | None:
        """The conversation of a chat, or of one text to complete; None: the body has another form, or several prompts.

        Args:
            model: id of the model.
            owner: whose it is: nobody comes into another's conversation, whatever they call it.
            name: as the client calls it.
            body: checked; it may be of any size.
        """
        pieces = _pieces(body)
        if not pieces:
            return None
        head = {key: body[key] for key in _HEAD if body.get(key) is not None}
        mark = self._hash(orjson.dumps([model, owner, head], option=orjson.OPT_SORT_KEYS))
        marks, sizes, size = [], [], len(orjson.dumps(head)) // _BYTES_PER_TOKEN if head else 0
        for piece in pieces:
            mark = self._hash(mark + piece)
            size += 1 + min(len(piece), _MOST_OF_A_MESSAGE) // _BYTES_PER_TOKEN
            marks.append(mark)
            sizes.append(size)
        named = None if name is None else self._hash(orjson.dumps([model, owner, name])).hex()
        return Conversation(model, named, tuple(marks), tuple(sizes))

    def _hash(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_MARK_BYTES, key=self._secret).digest()


def _pieces(body: Mapping[str, Any]) -> list[bytes]:
    if body.get("n") not in (None, 1):
        return []
    messages = body.get("messages")
    if isinstance(messages, list):
        return [orjson.dumps(message, option=orjson.OPT_SORT_KEYS) for message in messages]
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        return []
    return [prompt[at : at + _TEXT_PIECE].encode(errors="surrogatepass") for at in range(0, len(prompt), _TEXT_PIECE)]
