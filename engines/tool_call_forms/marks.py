"""Every marker that a form begins or ends with, and the tokens that end a turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

WRAPPERS: dict[str, tuple[str, ...]] = {
    "<tool_call>": ("</tool_call>",),
    "<tool_calls>": ("</tool_calls>",),
    "<|tool_call|>": ("<|/tool_call|>", "<|end_tool_call|>"),
    "<function_call>": ("</function_call>",),
    "<|tool_call_start|>": ("<|tool_call_end|>",),
    "<|tool_call>": ("<tool_call|>",),
    "<start_function_call>": ("<end_function_call>",),
    "<|python_tag|>": (),
    "functools": (),
    "<|START_ACTION|>": ("<|END_ACTION|>",),
    "<function_calls>": ("</function_calls>",),
    "<minimax:tool_call>": ("</minimax:tool_call>",),
    "<seed:tool_call>": ("</seed:tool_call>",),
    "<｜DSML｜function_calls>": ("</｜DSML｜function_calls>",),  # noqa: RUF001 - the token is written so
    "<TOOLCALL>": ("</TOOLCALL>",),
    "<|tools_prefix|>": ("<|tools_suffix|>",),
    "[TOOL_REQUEST]": ("[END_TOOL_REQUEST]",),
    "<functioncall>": ("</functioncall>",),
}
"""Opening marker → closing markers, for the forms that wrap something self-contained."""


def _spellings(words: str) -> tuple[str, ...]:
    """A DeepSeek token in its own letters first, then in those that look alike."""
    return tuple(f"<{bar}{words.replace(' ', gap)}{bar}>" for bar, gap in product("｜|", "▁_ "))  # noqa: RUF001


DEEPSEEK_SECTION = _spellings("tool calls begin")
DEEPSEEK_SECTION_END = _spellings("tool calls end")
DEEPSEEK_CALL = _spellings("tool call begin")
DEEPSEEK_CALL_END = _spellings("tool call end")
DEEPSEEK_SEPARATOR = _spellings("tool sep")
KIMI_SECTION = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
KIMI_SECTION_END = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
KIMI_CALL = "<|tool_call_begin|>"
KIMI_ARGUMENT = "<|tool_call_argument_begin|>"
KIMI_CALL_END = "<|tool_call_end|>"

ELEMENTS = ("<function=", "<invoke ", "<｜DSML｜invoke ")  # noqa: RUF001 - the token is written so
MISTRAL = "[TOOL_CALLS]"
ARGS = "[ARGS]"
HARMONY = ("<|start|>", "<|channel|>")
FUNCTIONARY = ("<|recipient|>", "<|from|>")
RECIPIENT = ">>>"

OPENERS = (
    *WRAPPERS,
    *ELEMENTS,
    *DEEPSEEK_SECTION,
    *DEEPSEEK_CALL,
    *KIMI_SECTION,
    *HARMONY,
    *FUNCTIONARY,
    MISTRAL,
    RECIPIENT,
)

END_OF_TURN = (
    "<|call|>",
    "<|end|>",
    "<|return|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|stop|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|observation|>",
    "<|user|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - the token is written so
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "</s>",
)
CLOSERS = (
    *(closer for closers in WRAPPERS.values() for closer in closers),
    *DEEPSEEK_CALL_END,
    *DEEPSEEK_SECTION_END,
    KIMI_CALL_END,
    *KIMI_SECTION_END,
    "</function>",
    "</invoke>",
    "</parameter>",
    "</arg_value>",
    "[/TOOL_CALLS]",
)

TOKENS = (*OPENERS, *END_OF_TURN, *CLOSERS)


def one_of(words: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the words, a longer one before its own beginning."""
    return re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))


def beginnings(words: Iterable[str]) -> frozenset[str]:
    """Every proper beginning of every word."""
    return frozenset(word[:end] for word in words for end in range(1, len(word)))


LONGEST = max(len(word) for word in (*TOKENS, *CLOSERS, KIMI_ARGUMENT))
"""Length in characters of the longest marker."""
