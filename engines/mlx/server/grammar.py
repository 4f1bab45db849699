"""Forms that an answer must have: from a request to a matcher of the constrained decoder (llguidance).

Grammars are made and compiled off the engine's thread. Blanks in JSON are fixed, since a small model that may write
any number of them sometimes writes nothing else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from engines.mlx.server.asked import Chat, Structure, Tools
from engines.mlx.server.problems import RequestError

_log = logging.getLogger(__name__)
_BLANKS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_OBJECT = {"type": "object"}
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
# Families of ``mlx_lm`` whose calls are JSON between these marks; None: a template that knows no tools.
_JSON_FAMILIES = frozenset({"json_tools", None})


class Grammars:
    """Makes matchers for one model.

    Args:
        tokenizer: the wrapper of ``mlx_lm``.
        vocabulary: tokens that the model scores.
        family: ``mlx_lm``'s word for how the model writes calls.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, family: str | None) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._family = family
        self._table: Any = None

    def wanted(self, chat: Chat) -> Any:
        """A fresh matcher for what the chat asks for; None: nothing is asked for, or it can't be held to it.

        Takes up to a second the first time, and for large schemas.

        Raises:
            RequestError: the schema of an answer is none.
        """
        if chat.structure is not None:
            return self._of_structure(chat.structure)
        if chat.tools.choice == "required":
            return self._of_tools(chat.tools)
        return None

    def _of_structure(self, structure: Structure) -> Any:
        from llguidance import LLMatcher  # noqa: PLC0415  only where a form is asked for

        schema = _ANY_OBJECT if structure.schema is None else dict(structure.schema)
        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_BLANKS)
        except (ValueError, TypeError) as error:
            raise RequestError(f"the schema can't be used: {error}", param="response_format") from error
        matcher = LLMatcher(self._tokens(), text, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the schema can't be used: {matcher.get_error()[:500]}", param="response_format")
        return matcher

    def _of_tools(self, tools: Tools) -> Any:
        """Calls in the notation of the model's family, with every argument that is required."""
        if self._family not in _JSON_FAMILIES:
            return None
        from llguidance import LLMatcher  # noqa: PLC0415  only where a form is asked for

        table = self._tokens()
        marks = tuple(self._mark(table, mark) for mark in (_OPEN, _CLOSE))
        text = LLMatcher.grammar_from_lark(tools_grammar(tools.offered, marks, several=tools.parallel))
        matcher = LLMatcher(table, text, log_level=0)
        if matcher.is_error():
            _log.warning("calls of these tools are not held to a grammar: %s", matcher.get_error()[:300])
            return None
        return matcher

    def _mark(self, table: Any, mark: str) -> str:
        """A mark as the grammar writes it: a token of its own, or its letters."""
        token = self._tokenizer.convert_tokens_to_ids(mark)
        own = isinstance(token, int) and 0 <= token < self._vocabulary and table.is_special_token(token)
        return mark if own else json.dumps(mark)

    def _tokens(self) -> Any:
        """The tokens as the decoder knows them.

        Raises:
            RequestError: this tokenizer is of a kind that it can't read.
        """
        if self._table is None:
            from llguidance.hf import from_tokenizer  # noqa: PLC0415  a second, once

            inner = getattr(self._tokenizer, "_tokenizer", self._tokenizer)
            ends = sorted(self._tokenizer.eos_token_ids)
            try:
                self._table = from_tokenizer(inner, n_vocab=self._vocabulary, eos_token=ends)
            except Exception as error:
                raise RequestError(f"this model's answers can't be held to a form: {error}") from error
        return self._table


def tools_grammar(tools: Sequence[Mapping[str, Any]], marks: Sequence[str], *, several: bool) -> str:
    """A grammar of calls: between marks, a JSON object with a tool's name and arguments that fit its parameters."""
    start, end = marks
    rows = ["%llguidance {}", f"start: call{' (NEXT call)*' if several else ''}", "NEXT: /\\n?/"]
    rows.append(f'call: {start} "\\n" tool "\\n" {end}')
    rows.append("tool: " + " | ".join(f"tool_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        rows.append(f"tool_{place}: %json {json.dumps(call_schema(tool['function']))}")
    return "\n".join(rows) + "\n"


def call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one tool's calls. Definitions move up, since references count from the top."""
    parameters = dict(function.get("parameters") or {"type": "object", "properties": {}})
    parameters.setdefault("type", "object")
    lifted = {key: parameters.pop(key) for key in ("$defs", "definitions") if key in parameters}
    return {
        **lifted,
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "x-guidance": _BLANKS,
    }
