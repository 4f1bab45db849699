"""Makes prompts: a conversation by the model's own template, a text by its tokenizer. Runs in a worker thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.mlx.server.asked import Chat, Prompt
from engines.mlx.server.grammar import Grammars
from engines.mlx.server.loading import Loaded
from engines.mlx.server.problems import RequestError, too_long
from engines.mlx.server.reasoning import Marks, opens_thoughts

_LONGEST_WORDS = 300
# Characters for each token of the context, of which a text that long is judged: tokens have about four.
_HEAD = 16
# What cutting a text in the middle of a word may add to its tokens.
_CUT = 64


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as tokens.

    Attributes:
        thinking: its end has opened the model's thoughts.
        matcher: holds an answer to a form; each answer needs a copy. None: any text will do.
    """

    tokens: tuple[int, ...]
    thinking: bool
    matcher: Any


class Prompter:
    """Prompts for one loaded model.

    Attributes:
        marks: around the model's thoughts; None: it has none.
        grammars: what answers can be held to.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.grammars = Grammars(loaded.tokenizer, loaded.facts.vocabulary, loaded.facts.tool_family)
        thoughts = loaded.facts.thoughts
        self.marks = None if thoughts is None else Marks(*thoughts)

    def render(self, chat: Chat) -> str:
        """The conversation as the text that the model reads.

        Raises:
            RequestError: the template refuses it.
        """
        options: dict[str, Any] = {"add_generation_prompt": not chat.continues, "tokenize": False}
        if chat.continues:
            options["continue_final_message"] = True
        if chat.tools.offered:
            options["tools"] = [dict(tool) for tool in chat.tools.offered]
        try:
            text = self._loaded.tokenizer.apply_chat_template(
                [dict(message) for message in chat.messages], **options, **chat.variables
            )
        except Exception as error:  # a template is a program, and raises what it likes
            words = str(error)[:_LONGEST_WORDS] or type(error).__name__
            raise RequestError(f"the model's chat template can't take this conversation: {words}") from error
        if not isinstance(text, str) or not text:
            raise RequestError("the model's chat template made no prompt of this conversation.")
        return text

    def chat(self, chat: Chat) -> ChatPrompt:
        """A conversation, ready for the engine.

        Raises:
            RequestError: the template refuses it, or a schema is none.
        """
        text = self.render(chat)
        tokens = self._encoded(text, whole=False)
        return ChatPrompt(tokens, opens_thoughts(text, self.marks), self.grammars.wanted(chat))

    def prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Tokens of a prompt that is a text, or tokens already.

        Raises:
            RequestError: there are none.
        """
        if isinstance(prompt, tuple):
            return prompt
        return self._encoded(prompt, whole=True)

    def tokens(self, text: str, *, marks: bool) -> list[int]:
        """Tokens of any text; ``marks``: with those that begin a prompt."""
        return self._loaded.spelling.encode(text, whole=marks)

    def text(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return self._loaded.spelling.decode(tokens)

    def _encoded(self, text: str, *, whole: bool) -> tuple[int, ...]:
        """A prompt's tokens. Of a text that is far too long the beginning is counted: all of it would take seconds.

        Raises:
            RequestError: there are none, or far too many.
        """
        spelling, context = self._loaded.spelling, self._loaded.facts.context
        head = context * _HEAD
        if len(text) > 2 * head:
            least = len(spelling.encode(text[:head], whole=whole))
            if least > context + _CUT:
                raise too_long(least, context, counted=False)
        return self._whole(spelling.encode(text, whole=whole))

    def _whole(self, tokens: list[int]) -> tuple[int, ...]:
        if not tokens:
            raise RequestError("the prompt has no tokens: it must not be empty.")
        return tuple(tokens)
