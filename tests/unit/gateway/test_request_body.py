from __future__ import annotations

from typing import Any

import pytest

from supervisor.errors import CallerError
from supervisor.gateway.request_body import require_input, require_messages, require_prompt, side_by_side

PIXEL = "data:image/png;base64,AAAA"


def _message(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts)}]}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": PIXEL},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "text", "text": "see http://example.org and file:///etc/passwd"},
        {"type": "file", "file": {"file_data": PIXEL, "filename": "a.pdf"}},
    ],
)
def test_what_is_in_the_request_itself_passes(part: dict[str, Any]) -> None:
    """Media as data, and texts about URLs."""
    require_messages(_message(part))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}},
        {"type": "image_url", "image_url": {"url": "HTTPS://example.org/x.png"}},
        {"type": "image_url", "image_url": {"url": " https://example.org/x.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": "http://example.org"},
        {"type": "text", "image_url": {"url": "http://example.org"}},
        {"type": "input_audio", "input_audio": {"url": "http://example.org/a.wav"}},
        {"type": "input_audio", "input_audio": {"data": "http://example.org/a.wav", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "ftp://example.org"}},
        {"type": "image_url", "image_url": [{"url": ["http://example.org"]}]},
    ],
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_an_engine_would_have_to_fetch_is_refused(part: dict[str, Any], role: str) -> None:
    """From the network or from the disk, in whatever part and role."""
    with pytest.raises(CallerError) as caught:
        require_messages(_message({"type": "text", "text": "hi"}, part, role=role))
    assert caught.value.code == "url_refused"
    assert "messages[0].content[1]" in caught.value.message


@pytest.mark.parametrize("media", ["http://example.org", "file:///etc/passwd"])
@pytest.mark.parametrize(("key", "require"), [("prompt", require_prompt), ("input", require_input)])
def test_multimodal_prompts_are_looked_through_as_well(key: str, require: Any, media: str) -> None:
    """llama-server takes media beside a raw prompt too; base64 passes."""
    require({key: {"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]}})
    with pytest.raises(CallerError) as caught:
        require({key: [{"prompt_string": "<__media__>", "multimodal_data": ["AAAA", media]}]})
    assert caught.value.code == "url_refused"


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2]], [1, "a"], ""])
def test_every_form_of_a_prompt_is_taken(prompt: Any) -> None:
    """Texts, token lists, and lists of them; what is in them is the engine's to judge."""
    require_prompt({"prompt": prompt})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"n": 2}, True),
        ({"n": 1}, False),
        ({"n": None}, False),
        ({}, False),
        ({"prompt": ["a", "b"]}, True),
        ({"prompt": [[1], [2]]}, True),
        ({"prompt": ["a"]}, False),
        ({"prompt": [1, 2]}, False),
        ({"prompt": "ab"}, False),
    ],
)
def test_answers_whose_chunks_mix_are_known(body: dict[str, Any], expected: bool) -> None:
    """Several choices or several prompts run side by side."""
    assert side_by_side(body) is expected
