"""An adapter that only reads models: its files are one word each, so that tests need no real format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from engines.contract import (
    Capability,
    EngineAdapter,
    EngineKind,
    ModelFileError,
    ModelMetadata,
    NotAModelError,
)
from engines.llama_cpp.settings import LlamaCppSettings


class ModelReader:
    """Reads files that say ``chat``, ``embed`` or ``projector``; any other word is broken.

    Attributes:
        read: names of the files it was asked to read, in order.
    """

    kind = EngineKind.LLAMA_CPP
    settings_type = LlamaCppSettings
    model_suffixes = (".gguf",)
    parts: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.read: list[str] = []

    def as_adapter(self) -> EngineAdapter:
        """Itself, typed as the whole that it is a part of."""
        return cast("EngineAdapter", self)

    def model_root(self, path: Path) -> Path:
        """A model is a file."""
        return path

    def split_files(self, path: Path) -> tuple[Path, ...] | None:
        """``X-00001-of-00002.gguf`` has a second part."""
        if "-00002-of-" in path.name:
            return None
        if "-00001-of-00002" not in path.name:
            return (path,)
        second = path.with_name(path.name.replace("-00001-", "-00002-"))
        if not second.exists():
            raise ModelFileError(f"{second.name} is missing.")
        return (path, second)

    def read_metadata(self, files: tuple[Path, ...]) -> ModelMetadata:
        """Facts of the word in the first file."""
        self.read.append(files[0].name)
        try:
            word = files[0].read_text()
        except OSError as error:
            raise ModelFileError(f"{files[0].name} can't be opened.") from error
        if word == "projector":
            raise NotAModelError(f"{files[0].name} is a projector.")
        if word not in {"chat", "embed"}:
            raise ModelFileError(f"{files[0].name} is broken.")
        size = sum(path.stat().st_size for path in files)
        fields: dict[str, str | int | float | bool] = {"a": 1, "b": 1.0, "c": True, "d": "1", "big": 2**64 - 1}
        return ModelMetadata("word", word, size, size, head_count_kv=(1, 0), split_count=len(files), fields=fields)

    def capabilities(self, metadata: ModelMetadata) -> frozenset[Capability]:
        """By the word."""
        return frozenset({Capability.CHAT if metadata.architecture == "chat" else Capability.EMBEDDINGS})


def write_word(path: Path, word: str = "chat") -> Path:
    """Write a model file of this reader; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(word)
    return path
