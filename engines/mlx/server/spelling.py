"""Between text and tokens, in both directions, without the traps of tokenizers that several threads share.

A fast tokenizer is used directly: its wrapper sets padding and truncation at each call, and two threads that do so at
once get an error. Text of answers keeps its first blank, which ``mlx_lm``'s own speller takes off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.mlx.server.work import TokenScore

_UNFINISHED = "�"
# How much of the prompt a speller hears, so that the first token is spelled as one that follows it.
_LEAD = 4


class Spelling:
    """A model's tokens and their texts.

    Args:
        tokenizer: the wrapper of ``mlx_lm``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self._bytes = _byte_table() if _is_byte_level(self._fast) else None

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """Tokens of a text; ``whole``: it begins a prompt, so that the marks of one are added if it lacks them."""
        bos = getattr(self._tokenizer, "bos_token", None)
        marks = whole and not (bos and text.startswith(bos))
        if self._fast is not None:
            ids: list[int] = self._fast.encode(text, add_special_tokens=marks).ids
            return ids
        return list(self._tokenizer.encode(text, add_special_tokens=marks))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        if self._fast is not None:
            text: str = self._fast.decode(list(tokens), skip_special_tokens=False)
            return text
        return str(self._tokenizer.decode(list(tokens)))

    def speller(self, prompt: Sequence[int]) -> StreamSpeller | OtherSpeller:
        """Spells what follows a prompt."""
        if self._fast is not None:
            return StreamSpeller(self._fast, list(prompt[-_LEAD:]))
        return OtherSpeller(self._tokenizer.detokenizer)

    def score(self, token: int, logprob: float) -> TokenScore:
        """A token's text and bytes beside its score."""
        text = self.decode([token])
        return TokenScore(token, text, self._raw(token, text), max(logprob, -1e4))

    def _raw(self, token: int, text: str) -> bytes:
        if self._bytes is not None and self._fast is not None:
            name = self._fast.id_to_token(token) or ""
            if all(character in self._bytes for character in name):
                return bytes(self._bytes[character] for character in name)
        return text.encode(errors="replace")


class StreamSpeller:
    """Spells one answer with a fast tokenizer."""

    def __init__(self, fast: Any, lead: list[int]) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415  heavy, and only in the engine's process

        self._fast = fast
        self._stream = DecodeStream(ids=lead, skip_special_tokens=False)
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """See ``sequence.Speller``."""
        self._pending.append(token)
        text = self._stream.step(self._fast, token)
        if text is None:
            return ""
        self._pending.clear()
        return str(text)

    def finish(self) -> str:
        """See ``sequence.Speller``."""
        pending, self._pending = self._pending, []
        return str(self._fast.decode(pending, skip_special_tokens=False)) if pending else ""


class OtherSpeller:
    """Spells one answer with ``mlx_lm``'s own speller, for tokenizers that are not fast ones."""

    def __init__(self, detokenizer: Any) -> None:
        self._detokenizer = detokenizer

    def feed(self, token: int) -> str:
        """See ``sequence.Speller``."""
        self._detokenizer.add_token(token)
        return str(self._detokenizer.last_segment)

    def finish(self) -> str:
        """See ``sequence.Speller``."""
        self._detokenizer.finalize()
        return str(self._detokenizer.last_segment)


def _is_byte_level(fast: Any) -> bool:
    decoder = getattr(fast, "decoder", None)
    return type(decoder).__name__ == "ByteLevel"


def _byte_table() -> dict[str, int]:
    """Characters that stand for bytes in byte-level vocabularies: printable ones for themselves, others moved up."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in shown}
    others = (byte for byte in range(256) if byte not in set(shown))
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
