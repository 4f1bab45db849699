"""Sessions whose answers broke the grammar of a tool call: from then on they are computed one token at a time. Pure."""

from __future__ import annotations

from collections import OrderedDict

_MOST = 4096


def broke_grammar(*, missing: bool, prose: bool, asked: bool, latched: bool) -> bool:
    """Whether an answer shows that constrained decoding does not hold for its session.

    Args:
        missing: a call lacks an argument that its tool requires.
        prose: the call stood in plain text, which no grammar has seen.
        asked: a grammar with the required arguments was asked for.
        latched: it is known already.
    """
    return missing and asked and not prose and not latched


class Latches:
    """The sessions that are known; the oldest are forgotten."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, session: str | None) -> bool:
        return session is not None and session in self._known

    def set(self, session: str) -> None:
        """From now on; there is no way back."""
        self._known[session] = None
        self._known.move_to_end(session)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
