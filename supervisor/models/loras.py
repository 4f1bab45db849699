"""LoRAs that are installed: a folder, and a small YAML file beside each of them.

A request names an id and nothing else; file, strength, prompt words and settings come from here, so that a caller that
knows less still draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

_SUFFIXES = (".safetensors", ".gguf")
_LARGEST_FILE = 64 * 1024
_MOST = 1000


class LoraRender(BaseModel):
    """Settings with which a LoRA is used, unless the request says its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(None, ge=1, le=100)
    cfg_scale: float | None = Field(None, ge=0, le=100)
    sampler: str | None = None
    scheduler: str | None = None


class LoraFile(BaseModel):
    """What the YAML file says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    name: str | None = None
    purpose: Literal["style", "speed"] = "style"
    base_models: tuple[str, ...] = ()
    strength: float = Field(1.0, ge=-4, le=4)
    prompt: str | None = Field(None, max_length=2000)
    render: LoraRender = LoraRender()


@dataclass(frozen=True, slots=True)
class InstalledLora:
    """A LoRA.

    Attributes:
        file: its weights; ``relative``: from the folder.
        base_models: kinds of network, or ids of models, that it is for; empty: whichever it fits.
        strength: how strongly it is applied.
        prompt: words that it wants in the prompt.
        purpose: ``speed`` ones set steps and guidance.
    """

    id: str
    name: str
    purpose: str
    base_models: tuple[str, ...]
    file: Path
    relative: str
    strength: float
    prompt: str | None
    render: LoraRender
    file_bytes: int

    def is_for(self, *names: str) -> bool:
        """Whether it says that it is for one of these; one that says nothing is for all."""
        return not self.base_models or not set(self.base_models).isdisjoint(names)

    def summary(self) -> dict[str, Any]:
        """As a listing shows it."""
        row: dict[str, Any] = {"id": self.id, "name": self.name, "purpose": self.purpose}
        return row if self.render.steps is None else {**row, "steps": self.render.steps}


@dataclass(frozen=True, slots=True)
class LoraShelf:
    """What a folder holds; ``problems`` says what in it can't be used."""

    loras: tuple[InstalledLora, ...] = ()
    problems: tuple[str, ...] = ()

    def find(self, name: str) -> InstalledLora | None:
        """The one with this id."""
        return next((lora for lora in self.loras if lora.id == name), None)


def read_loras(folder: Path | None) -> LoraShelf:
    """Read the YAML files of a folder, in a worker thread; what is wrong with them is told, and never raised."""
    if folder is None:
        return LoraShelf()
    found: dict[str, InstalledLora] = {}
    problems: list[str] = []
    try:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in {".yaml", ".yml"})[:_MOST]
    except OSError as error:
        return LoraShelf((), (f"{folder} can't be read: {error.strerror}",))
    for path in paths:
        try:
            lora = _read(folder, path)
        except (OSError, ValueError, yaml.YAMLError) as error:
            problems.append(f"{path.name}: {_words(error)}")
            continue
        if lora.id in found:
            problems.append(f"{path.name}: the id {lora.id!r} is taken by {found[lora.id].relative}")
        else:
            found[lora.id] = lora
    return LoraShelf(tuple(found.values()), tuple(problems))


def _read(folder: Path, path: Path) -> InstalledLora:
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError("is too large for a description")
    said = LoraFile.model_validate(yaml.load(path.read_bytes(), Loader=_loader()))  # noqa: S506  a safe loader
    file = next((path.with_suffix(end) for end in _SUFFIXES if path.with_suffix(end).is_file()), None)
    if file is None:
        raise ValueError(f"there is no {path.stem}.safetensors or .gguf beside it")
    return InstalledLora(
        id=said.id,
        name=said.name or said.id,
        purpose=said.purpose,
        base_models=said.base_models,
        file=file,
        relative=file.relative_to(folder).as_posix(),
        strength=said.strength,
        prompt=said.prompt,
        render=said.render,
        file_bytes=file.stat().st_size,
    )


def _loader() -> type[yaml.SafeLoader]:
    return yaml.SafeLoader


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).replace("\n", " ")[:200]
