"""GGUF files: ``read_metadata`` gives the facts of a model; the parts behind it are in the files beside this one."""

from __future__ import annotations

from pathlib import Path

from engines.contract import ModelMetadata
from engines.formats.gguf_header import GgufHeader, TensorInfo, read_header
from engines.formats.gguf_metadata import is_model, metadata_of, projector_of
from engines.formats.gguf_split import split_files

__all__ = [
    "GgufHeader",
    "TensorInfo",
    "is_model",
    "metadata_of",
    "read_header",
    "read_metadata",
    "read_projector",
    "split_files",
]


def read_metadata(files: tuple[Path, ...]) -> ModelMetadata:
    """Facts from the headers of a model's files, in the order of ``split_files``.

    Raises:
        ModelFileError: not GGUF, cut short, nonsense inside, or parts that don't belong together.
        NotAModelError: sound, but no model of its own.
    """
    return metadata_of([read_header(path) for path in files])


def read_projector(path: Path) -> ModelMetadata:
    """Facts of a projector: what makes of a picture or a sound something that a model reads.

    Raises:
        ModelFileError: not GGUF, cut short, nonsense inside, or no projector.
    """
    return projector_of(read_header(path))
