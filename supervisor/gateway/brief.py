"""Which answers are so short that nothing is gained by a stream, and which prompts by reports of progress. Pure.

As a stream an answer tells slow from stuck, and ends when its client leaves. One of a few tokens to a short prompt is
over before either counts; asked for whole, it costs the engine a fifth less, and the daemon a third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Tokens: on the slowest of machines, some seconds.
_FEW = 16
# Characters: about a thousand tokens of prompt.
_SHORT = 4096
# And about a hundred: read in one batch, of which the only report comes with the first content.
_ONE_BATCH = 512
_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
# Tools and tokens' probabilities are told differently in the two forms.
_OTHERWISE = ("tools", "functions", "logprobs", "n_probs", "top_logprobs")


def is_brief(body: Mapping[str, Any]) -> bool:
    """Whether an answer to this body is short by its limit, whatever that is called, its prompt too, and it is one."""
    said = [body[key] for key in _LIMITS if body.get(key) is not None]
    if not said or not all(type(limit) is int and 0 <= limit <= _FEW for limit in said):
        return False
    if body.get("n") not in (None, 1) or any(body.get(key) for key in _OTHERWISE):
        return False
    return _is_text_of(body, _SHORT)


def is_read_at_once(body: Mapping[str, Any]) -> bool:
    """Whether the prompt is so short that an engine reads it in one batch, and the client asks for no reports."""
    plain = not body.get("return_progress") and not any(body.get(key) for key in _OTHERWISE)
    return plain and body.get("n") in (None, 1) and _is_text_of(body, _ONE_BATCH)


def _is_text_of(body: Mapping[str, Any], most: int) -> bool:
    messages = body.get("messages")
    texts = [body.get("prompt")] if messages is None else [message.get("content") for message in messages]
    read = [text for text in texts if isinstance(text, str)]
    return len(read) == len(texts) and sum(map(len, read)) <= most
