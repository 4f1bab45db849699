"""Models of several files: the model itself, a projector that reads pictures or sound, a draft model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from engines.contract import ModelFileError, ModelMetadata, PlanDraft
from engines.formats import gguf

MODEL, PROJECTOR, DRAFT = "model", "mmproj", "draft"
PARTS: Mapping[str, str] = MappingProxyType(
    {
        MODEL: "the model, or the first of its files",
        PROJECTOR: "a projector, with which the model reads pictures or sound",
        DRAFT: "a smaller model with the same tokens, which guesses ahead",
    }
)


def read_parts(parts: Mapping[str, Path]) -> ModelMetadata:
    """Facts of the model, and beside them those of the files that go with it.

    Raises:
        ModelFileError: one can't be read or is not what its role says, or there is no model among them.
    """
    if MODEL not in parts:
        raise ModelFileError(f"`files` names no {MODEL}, which the others go with: name it there, or as `file`.")
    whole = _read_model(parts[MODEL])
    beside = {}
    if PROJECTOR in parts:
        beside[PROJECTOR] = gguf.read_projector(parts[PROJECTOR])
    if DRAFT in parts:
        beside[DRAFT] = _read_model(parts[DRAFT])
    return replace(
        whole,
        file_bytes=whole.file_bytes + sum(other.file_bytes for other in beside.values()),
        roles=tuple(role for role in PARTS if role in parts),
        beside=beside,
    )


def _read_model(path: Path) -> ModelMetadata:
    files = gguf.split_files(path)
    if files is None:
        raise ModelFileError(f"{path.name} is a later part of a model. Name its first part.")
    return gguf.read_metadata(files)


def file_of(draft: PlanDraft, role: str) -> Path | None:
    """The file of a role; a model that comes in no parts is one file."""
    if not draft.metadata.roles:
        return draft.files[0] if role == MODEL else None
    return dict(zip(draft.metadata.roles, draft.files, strict=False)).get(role)
