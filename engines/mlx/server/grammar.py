"""Forms that an answer must have: from a request to a matcher of the constrained decoder (llguidance).

Grammars are made and compiled off the engine's thread.
"""

from __future__ import annotations

import functools
import json
import logging
from typing import Any

from engines.mlx.server.asked import Chat, Structure, Tools
from engines.mlx.server.notations import BLANKS, calls_grammar
from engines.mlx.server.problems import RequestError

_log = logging.getLogger(__name__)
_ANY_OBJECT = {"type": "object"}


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
        self._told: set[str] = set()

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
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=BLANKS)
        except (ValueError, TypeError) as error:
            raise RequestError(f"the schema can't be used: {error}", param="response_format") from error
        matcher = LLMatcher(self._tokens(), text, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the schema can't be used: {matcher.get_error()[:500]}", param="response_format")
        return matcher

    def _of_tools(self, tools: Tools) -> Any:
        """Calls in the notation of the model's family, with every argument that is required."""
        from llguidance import LLMatcher  # noqa: PLC0415  only where a form is asked for

        table = self._tokens()
        offered = [tool["function"] for tool in tools.offered]
        template = getattr(self._tokenizer, "chat_template", None)
        known = template if isinstance(template, str) else ""
        mark = functools.partial(self._mark, table)
        text = calls_grammar(self._family, offered, mark, several=tools.parallel, template=known)
        if text is None:
            self._free(f"the family {self._family} has no grammar for them")
            return None
        matcher = LLMatcher(table, LLMatcher.grammar_from_lark(text), log_level=0)
        if matcher.is_error():
            self._free(matcher.get_error()[:300])
            return None
        return matcher

    def _free(self, reason: str) -> None:
        """Calls are read from free text: said once for each reason."""
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("calls of tools are not held to a grammar: %s", reason)

    def _mark(self, table: Any, mark: str) -> str:
        """A mark as the grammar writes it: a token of its own, or its letters."""
        token = self._tokenizer.convert_tokens_to_ids(mark)
        own = isinstance(token, int) and 0 <= token < self._vocabulary and table.is_special_token(token)
        return f"<[{token}]>" if own else json.dumps(mark)

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
