"""How long an engine may be silent within a request. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.config.schema import SupervisionConfig

_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``supervision.request``: seconds, and tokens where they are meant.

    Attributes:
        first_base: of silence before the first content, for any prompt.
        first_per_1k_tokens: more for each 1,000 tokens of the prompt beyond ``first_free_tokens``.
        first_cap: never more.
        image_tokens: what a picture, a sound or a file counts for.
        idle: of silence after the first content.
        verdict: a silent engine is looked at for so long before the request is given up.
    """

    first_base: float = 300.0
    first_per_1k_tokens: float = 12.0
    first_free_tokens: int = 8000
    first_cap: float = 900.0
    image_tokens: int = 2048
    idle: float = 300.0
    verdict: float = 7.0

    @classmethod
    def of(cls, config: SupervisionConfig) -> RequestLimits:
        """The limits that a config sets; a look is a probe of the health address, and one of the slots."""
        request = config.request
        return cls(
            request.first_base,
            request.first_per_1k_tokens,
            request.first_free_tokens,
            request.first_cap,
            request.image_tokens,
            request.idle,
            verdict=2 * config.liveness.timeout + 1,
        )

    @property
    def longest(self) -> float:
        """Seconds beyond which nothing waits: for the connection itself, should the watch-dog not bark."""
        return max(self.first_base, self.first_cap, self.idle) + self.verdict + _MARGIN_SECONDS

    @property
    def enough_tokens(self) -> int:
        """A prompt of so many tokens has all the time that there is."""
        if self.first_per_1k_tokens <= 0:
            return self.first_free_tokens
        more = max(0.0, self.first_cap - self.first_base) / self.first_per_1k_tokens
        return self.first_free_tokens + math.ceil(1000 * more)

    def first(self, tokens: int) -> float:
        """Seconds of silence before the first content, for a prompt of so many tokens."""
        more = max(0, tokens - self.first_free_tokens) / 1000 * self.first_per_1k_tokens
        return max(self.first_base, min(self.first_cap, self.first_base + more))


class CurrentLimits:
    """The limits of the config that is in force; made anew only when there is another one."""

    def __init__(self, config: Callable[[], SupervisionConfig]) -> None:
        self._config = config
        self._made_of: SupervisionConfig | None = None
        self._limits = RequestLimits()

    def __call__(self) -> RequestLimits:
        """The limits now."""
        config = self._config()
        if config is not self._made_of:
            self._made_of, self._limits = config, RequestLimits.of(config)
        return self._limits
