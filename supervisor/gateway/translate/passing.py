"""Which frames of an engine's stream a client gets, and when the stream is over."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.gateway.translate.sse import DONE, data_of, error_of


class PassThrough:
    """Picks what may be passed on, without reading what is inside.

    Until the first content, progress reports, comments and empty frames are taken out. From then on everything
    passes, unless several choices run side by side: one's progress may come after another's content.

    Args:
        is_progress: the adapter's test of a frame's data.
        keep_progress: the client asked for progress reports.
        side_by_side: the request has several choices or prompts.

    Attributes:
        content: the first content has come.
        done: the engine said that its answer is complete.
        error: data of the engine's error frame; nothing is passed from there on.
        progress: data of the first progress report.
    """

    __slots__ = ("_is_progress", "_keep_progress", "_side_by_side", "content", "done", "error", "progress")

    def __init__(self, is_progress: Callable[[bytes], bool], *, keep_progress: bool, side_by_side: bool) -> None:
        self._is_progress = is_progress
        self._side_by_side = side_by_side
        self._keep_progress = keep_progress
        self.content = False
        self.done = False
        self.error: bytes | None = None
        self.progress: bytes | None = None

    def pick(self, frames: list[bytes]) -> bytes:
        """The bytes for the client; empty when nothing may be passed yet."""
        passed: list[bytes] = []
        for frame in frames:
            data = data_of(frame)
            if data == DONE:
                self.done = True
                passed.append(frame)
                break
            self.error = error_of(frame, data)
            if self.error is not None:
                break
            if self.content and not self._side_by_side:
                passed.append(frame)
            elif self._is_content(data):
                self.content = True
                passed.append(frame)
            elif self._keep_progress:
                passed.append(frame)
        return b"".join(passed)

    def _is_content(self, data: bytes | None) -> bool:
        # llama-server sends `data: null` where a prompt of several has nothing to say yet; SDKs stumble over it.
        if data is None or data == b"null":
            return False
        if not self._is_progress(data):
            return True
        if self.progress is None:
            self.progress = data
        return False
