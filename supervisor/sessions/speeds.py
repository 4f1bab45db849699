"""How fast engines of a model read prompts, and write and read files: learned as they do."""

from __future__ import annotations

from dataclasses import dataclass

from engines.contract import LaunchPlan

# Share of the newest in what is expected of the next.
_NEWEST = 0.3
# Before anything was seen: a small model on a few cores; memory to a page cache.
_FIRST_TOKEN_SECONDS = 0.004
_FIRST_TOKEN_BYTES = 100 * 2**10
_FIRST_BYTES_PER_SECOND = 1e9
# Fewer tokens tell of the overhead rather than of the speed; so many tell as much as any.
_FEW_TOKENS = 32
_MANY_TOKENS = 256


def first_speeds(plan: LaunchPlan) -> Speeds:
    """Before anything was seen: a token's bytes are its share of the KV that the plan counts with, where it does."""
    kv = sum(estimate.kv or 0 for estimate in plan.memory.values())
    tokens = (plan.ctx_size or 0) * plan.slots
    return Speeds(token_bytes=kv / tokens) if kv > 0 and tokens > 0 else Speeds()


@dataclass(slots=True)
class Speeds:
    """Seconds for each token of a prompt, bytes for each token of a file, bytes written or read a second."""

    token_seconds: float = _FIRST_TOKEN_SECONDS
    token_bytes: float = _FIRST_TOKEN_BYTES
    bytes_per_second: float = _FIRST_BYTES_PER_SECOND
    _seen: bool = False
    _moved: bool = False

    def prompt_was_read(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        if tokens >= _FEW_TOKENS and seconds > 0:
            part = _NEWEST * min(1.0, tokens / _MANY_TOKENS) if self._seen else 1.0
            self.token_seconds += part * (seconds / tokens - self.token_seconds)
            self._seen = True

    def file_was_moved(self, tokens: int, size: int, seconds: float) -> None:
        """A file of so many tokens and bytes was written or read in this time."""
        if tokens > 0 and size > 0 and seconds > 0:
            self.token_bytes, self._moved = size / tokens, True
            self.bytes_per_second += _NEWEST * (size / seconds - self.bytes_per_second)

    def prefill(self, tokens: float) -> float:
        """Seconds to compute so many tokens."""
        return tokens * self.token_seconds

    def whole(self, total: int, cached: int, seconds: float | None, known: tuple[int, float] | None) -> float:
        """Seconds to compute a prompt of which a part was there: the longer it is, the more each further token takes.

        Args:
            total: tokens of the prompt.
            cached: of them, that were there.
            seconds: what the rest took; None: not known.
            known: tokens that were there, and what they took; None: not known.
        """
        rest = self.prefill(total - cached) if seconds is None else seconds
        if known is None or known[0] <= 0:
            return self.prefill(cached) + rest
        return known[1] * min(1.0, cached / known[0]) + rest

    def size(self, tokens: float) -> int:
        """Bytes of a file of so many tokens."""
        return round(tokens * self.token_bytes)

    def room(self, tokens: float, budget: int) -> int:
        """Bytes to expect of a file; a mere guess is never more than ``budget``: the first file tells."""
        return self.size(tokens) if self._moved else min(self.size(tokens), budget)

    def transfer(self, tokens: float) -> float:
        """Seconds to write or read it."""
        return self.size(tokens) / max(1.0, self.bytes_per_second)
