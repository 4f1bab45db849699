"""What goes into the engine's thread, and what comes out of it. Frozen values without anything of MLX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engines.mlx.server.asked import Wishes
from engines.mlx.server.problems import RequestError


@dataclass(frozen=True, slots=True)
class Work:
    """One answer to one prompt.

    Attributes:
        id: unique in the life of the process.
        prompt: its tokens; at least one.
        most: tokens that the answer may have; at least one.
        matcher: holds the answer to a form; for this answer alone.
        thinking: the prompt has opened the model's thoughts, which are free of that form.
        sequential: it is computed by itself, token after token.
    """

    id: int
    prompt: tuple[int, ...]
    most: int
    wishes: Wishes
    matcher: Any = None
    thinking: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's text, its bytes, and the logarithm of its probability."""

    id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Scored:
    """A token that was chosen, and the likeliest ones in its place."""

    chosen: TokenScore
    others: tuple[TokenScore, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a prompt has been read, in tokens; ``cached`` of them did not have to be."""

    last: ClassVar[bool] = False
    processed: int
    total: int
    cached: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was just written."""

    last: ClassVar[bool] = False
    text: str
    scores: tuple[Scored, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """What one answer took: tokens and seconds; ``drafted`` of the tokens came from the draft model."""

    prompt: int
    cached: int
    said: int
    prompt_seconds: float
    said_seconds: float
    drafted: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer: ``stop`` or ``length``, and the stop string if one ended it."""

    last: ClassVar[bool] = True
    reason: str
    counts: Counts
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request can't be served; others are not touched."""

    last: ClassVar[bool] = True
    error: RequestError


Event = Progress | Piece | Done | Failed


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the loaded model says of itself.

    Attributes:
        thoughts: marks around what it thinks; None: it does not.
        tool_family: ``mlx_lm``'s word for how it writes calls.
        embeds: width of the vectors that it gives of texts; None: it gives none.
        parameters: bytes of its weights.
        trained: tokens that it was trained on.
        batches: answers can be computed together.
    """

    vocabulary: int
    context: int
    has_template: bool
    thoughts: tuple[str, str] | None = None
    tool_family: str | None = None
    embeds: int | None = None
    parameters: int = 0
    trained: int | None = None
    batches: bool = True
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
