"""What a checked request asks for: frozen values, from which the engine makes sequences. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["mtp", "ar"]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the loaded model allows, against which requests are checked.

    Attributes:
        name: the one name that it is asked by, beside ``default_model``.
        vocabulary: number of tokens that it scores.
        context: tokens that one request may use, prompt and answer together.
        has_template: it can be asked to chat.
    """

    name: str
    vocabulary: int
    context: int
    has_template: bool


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; 0 turns a rule off.

    Attributes:
        top_p: 1 for off.
        seed: 64 bits; None: another one each time.
        repetition_penalty: 1 for off; over the last ``penalty_window`` tokens of prompt and answer.
        presence_penalty, frequency_penalty: over the answer so far.
        logit_bias: token and what is added to its score.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    penalty_window: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        """The likeliest token is taken, whatever the seed."""
        return self.temperature == 0.0

    @property
    def plain(self) -> bool:
        """Scores are taken as the model gives them."""
        return (
            self.repetition_penalty == 1.0
            and not self.presence_penalty
            and not self.frequency_penalty
            and not self.logit_bias
        )


@dataclass(frozen=True, slots=True)
class Structure:
    """A form that the answer must have.

    Attributes:
        schema: of JSON; None: any JSON object.
    """

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that are offered.

    Attributes:
        offered: as in the request.
        choice: ``auto``; ``required``: one of them must be called.
        named: only this one may be called.
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    choice: Literal["auto", "required"] = "auto"
    named: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, checked and in the form that templates take.

    Attributes:
        continues: the last message is the assistant's, and is gone on with.
        variables: more values for the template, such as ``enable_thinking``.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: Tools = Tools()
    structure: Structure | None = None
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What chats and completions have in common.

    Attributes:
        max_tokens: of the answer; None: as many as the context holds.
        choices: answers to each prompt.
        top_logprobs: alternatives beside each token; None: no logprobs.
        progress: reports of how far the prompt is read are sent.
        mode: speculative (``mtp``) or not (``ar``) for this request; None: as the server does by itself.
        depth: tokens that the draft model is ahead; None: the server's own.
    """

    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    choices: int = 1
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    progress: bool = False
    timings_per_token: bool = False
    ignore_eos: bool = False
    cache_prompt: bool = True
    mode: Mode | None = None
    depth: int | None = None


Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: either ``chat`` is set, or ``prompts`` holds at least one."""

    wishes: Wishes
    chat: Chat | None = None
    prompts: tuple[Prompt, ...] = ()
