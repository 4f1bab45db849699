"""An adapter's part in requests, written by hand."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from engines.contract import LaunchSettings, ModelMetadata
from engines.llama_cpp.generation import count_tokens, name_stop, stop_string


class FakeGeneration:
    """An adapter's part: marks the body, and knows llama-server's progress."""

    def __init__(self, *, media: bool = True) -> None:
        self.media = media

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
        """The body, marked."""
        return {**body, "stream": True, "return_progress": progress}

    def prepare_whole(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The body, marked, where a test wants it."""
        return {**body, "whole": True} if body.get("wholly") else None

    def name_stop(self, sent: dict[str, Any]) -> dict[str, Any]:
        """As llama-server is asked."""
        return name_stop(sent)

    def stop_string(self, data: bytes) -> str | None:
        """As llama-server says it."""
        return stop_string(data)

    def answer_prefix(self, body: dict[str, Any]) -> str:
        """What a test wants."""
        return str(body.get("prefix", ""))

    def can_stream(self, body: dict[str, Any]) -> bool:
        """All but what says so."""
        return not body.get("unstreamable")

    def takes_media(self, settings: LaunchSettings, metadata: ModelMetadata | None) -> bool:
        """As a test wants."""
        return self.media

    def is_progress(self, data: bytes) -> bool:
        """As llama-server writes it."""
        return b'"prompt_progress":' in data

    def count_tokens(self, body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """As llama-server is asked."""
        return count_tokens(body)
