from __future__ import annotations

from typing import Any

import pytest

from supervisor.gateway.brief import is_brief, is_read_at_once

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HI, "max_tokens": 1},
        {"messages": HI, "max_completion_tokens": 16, "n": 1, "tools": [], "logprobs": False},
        {"prompt": "once", "n_predict": 0},
    ],
)
def test_a_few_tokens_to_a_short_prompt_are_brief(body: dict[str, Any]) -> None:
    """Whatever the limit is called."""
    assert is_brief(body)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HI},
        {"messages": HI, "max_tokens": None},
        {"messages": HI, "max_tokens": 17},
        {"messages": HI, "max_tokens": -1},
        {"messages": HI, "max_tokens": True},
        {"messages": HI, "max_tokens": "1"},
        {"messages": HI, "max_tokens": 1, "n_predict": 500},
        {"messages": HI, "max_tokens": 1, "n": 2},
        {"messages": HI, "max_tokens": 1, "tools": [{}]},
        {"messages": HI, "max_tokens": 1, "logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 1},
        {"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 1},
        {"prompt": ["a", "b"], "max_tokens": 1},
        {"max_tokens": 1},
    ],
)
def test_everything_else_is_read_as_a_stream(body: dict[str, Any]) -> None:
    """A limit that is none, is long, or is contradicted; several answers; prompts that are long, or hold media."""
    assert not is_brief(body)


@pytest.mark.parametrize(
    ("body", "at_once"),
    [
        ({"messages": HI}, True),
        ({"prompt": "x" * 512}, True),
        ({"prompt": "x" * 513}, False),
        ({"messages": HI, "return_progress": True}, False),
        ({"messages": HI, "tools": [{}]}, False),
        ({"messages": HI, "n": 2}, False),
        ({"messages": [*HI, {"role": "tool", "content": None}]}, False),
    ],
)
def test_a_prompt_of_one_batch_needs_no_reports(body: dict[str, Any], *, at_once: bool) -> None:
    """Unless the client wants them, or what is sent is not told by its text alone."""
    assert is_read_at_once(body) is at_once
