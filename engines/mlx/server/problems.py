"""What is wrong with a request, in a form that every answer of this server uses for it."""

from __future__ import annotations

from typing import Any

BAD_REQUEST = 400
NOT_FOUND = 404
UNAVAILABLE = 503


class RequestError(Exception):
    """A request that is refused, or that failed alone.

    Args:
        message: what is wrong and what to do about it, for the client.
        status: of HTTP.
        kind: a stable word, ``error.type``.
        facts: more members of ``error``.
    """

    def __init__(
        self, message: str, *, status: int = BAD_REQUEST, kind: str = "invalid_request_error", **facts: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.facts = facts

    @property
    def body(self) -> dict[str, Any]:
        """The answer's document."""
        return {"error": {"code": self.status, "message": str(self), "type": self.kind, **self.facts}}


def too_long(prompt_tokens: int, context: int, *, counted: bool = True) -> RequestError:
    """A prompt that leaves no room in the context, under the type that other engines use for it.

    Args:
        prompt_tokens: that it has; not ``counted``: the beginning alone has so many.
        context: tokens that there are.
        counted: it was counted to its end.
    """
    least = "" if counted else "at least "
    return RequestError(
        f"the prompt has {least}{prompt_tokens} tokens; a request may use {context} in all. Shorten it, or raise "
        "launch.ctx_size of the model.",
        kind="exceed_context_size_error",
        n_prompt_tokens=prompt_tokens,
        n_ctx=context,
    )
