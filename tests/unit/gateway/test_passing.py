from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.gateway.translate.passing import PassThrough
from supervisor.gateway.translate.sse import SseSplitter

DATA = Path(__file__).parents[2] / "data" / "gateway"


def _is_progress(data: bytes) -> bool:
    return b'"prompt_progress":' in data


def _frames(name: str) -> list[bytes]:
    return SseSplitter().feed((DATA / f"{name}.sse").read_bytes())


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("*.sse")))
def test_exactly_the_progress_is_taken_out(name: str) -> None:
    """Of every recorded stream a client gets all but the progress, unchanged and in order.

    Prevents: with two choices, one's progress comes after the other's content, and once leaked to the client.
    """
    frames = _frames(name)
    passing = PassThrough(_is_progress, keep_progress=False, side_by_side="two" in name)
    passed = b"".join(passing.pick([frame]) for frame in frames)
    assert passed == b"".join(frame for frame in frames if not _is_progress(frame))
    assert len(passed) < len(b"".join(frames))
    assert passing.done


def test_who_asked_for_progress_gets_it() -> None:
    """Nothing is taken out for a client that sent `return_progress`."""
    frames = _frames("chat")
    passing = PassThrough(_is_progress, keep_progress=True, side_by_side=False)
    assert passing.pick(frames) == b"".join(frames)


def test_after_the_first_content_nothing_is_looked_at() -> None:
    """With one choice the adapter is not asked any more once content has come."""
    asked: list[bytes] = []

    def is_progress(data: bytes) -> bool:
        asked.append(data)
        return _is_progress(data)

    passing = PassThrough(is_progress, keep_progress=False, side_by_side=False)
    passing.pick(_frames("chat"))
    assert len(asked) == 3  # two reports, and the first content


def test_an_error_ends_the_passing() -> None:
    """What came before the error passes; the error itself and what follows do not."""
    passing = PassThrough(_is_progress, keep_progress=False, side_by_side=False)
    picked = passing.pick([b"data: 1\n\n", b'data: {"error":{}}\n\n', b"data: 2\n\n"])
    assert picked == b"data: 1\n\n"
    assert passing.error == b'{"error":{}}'
    assert not passing.done


def test_nothing_follows_done() -> None:
    """`[DONE]` is the last frame, whatever the engine sends after it."""
    passing = PassThrough(_is_progress, keep_progress=False, side_by_side=False)
    assert passing.pick([b"data: [DONE]\n\n", b"data: 2\n\n"]) == b"data: [DONE]\n\n"
    assert passing.done


def test_empty_frames_before_content_are_no_content() -> None:
    """Comments and llama-server's `data: null` do not count as the first content, and do not pass before it."""
    passing = PassThrough(_is_progress, keep_progress=False, side_by_side=False)
    assert passing.pick([b": ping\n\n", b"data: null\n\n"]) == b""
    assert passing.pick([b"data: 1\n\n", b": ping\n\n"]) == b"data: 1\n\n: ping\n\n"
