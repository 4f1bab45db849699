"""Recorded launches of real builds, against what the memory estimate says before any launch.

A row has ``argv``, ``build``, ``declared`` bytes by device and buffer, and ``observed`` bytes; a header has a model's
metadata and tensor table. ``compare`` gives every buffer's predicted and declared bytes.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.contract import ModelMetadata
from engines.formats.gguf import GgufHeader, TensorInfo, metadata_of
from engines.llama_cpp.memory_argv import choices_from_argv
from engines.llama_cpp.memory_launch import HOST, LaunchChoices
from engines.llama_cpp.memory_model import ModelShape, model_shape
from engines.llama_cpp.memory_plan import MemoryTable, memory_table

DATA = Path(__file__).parent.parent / "data" / "memory"
_BUILD_NUMBERS = {"cpu-b11434": 11434, "vulkan-wheel": 10434}


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one row; bytes.

    Attributes:
        buffer: ``weights``, ``repacked``, ``kv``, ``recurrent``, ``output``, ``compute`` or ``anonymous``.
        place: ``host`` or a device's name.
        placement: ``cpu``, ``full`` or ``partial``.
        predicted: None: not known.
    """

    row: str
    architecture: str
    placement: str
    place: str
    buffer: str
    declared: int
    predicted: int | None

    @property
    def error(self) -> float:
        """Relative to what was declared; infinite where nothing was."""
        if self.predicted == self.declared:
            return 0.0
        if self.predicted is None or not self.declared:
            return float("inf")
        return self.predicted / self.declared - 1


@dataclass(frozen=True, slots=True)
class Column:
    """All figures of one buffer in one placement.

    Attributes:
        exact: how many were right to the byte.
        least, most: largest errors below and above, in bytes.
    """

    placement: str
    place: str
    buffer: str
    rows: int
    exact: int
    least: int
    most: int


def recorded_rows() -> list[dict[str, Any]]:
    """The recorded launches that come with the tests."""
    return _lines(DATA / "rows.jsonl.gz")


def recorded_headers() -> dict[str, dict[str, Any]]:
    """The recorded models, by ``model_id``."""
    return {header["model_id"]: header for header in _lines(DATA / "headers.jsonl.gz")}


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def columns(compared: Iterable[Compared]) -> list[Column]:
    """One line for each placement, place and buffer; figures that are not known count as 0 bytes."""
    groups: defaultdict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for figure in compared:
        groups[figure.placement, figure.place, figure.buffer].append(figure)
    result = []
    for (placement, place, buffer), figures in sorted(groups.items()):
        errors = [(figure.predicted or 0) - figure.declared for figure in figures]
        exact = sum(figure.predicted == figure.declared for figure in figures)
        result.append(Column(placement, place, buffer, len(figures), exact, min(errors), max(errors)))
    return result


def metadata_of_row(header: Mapping[str, Any]) -> ModelMetadata:
    """Metadata as the header walk would give it for the recorded file."""
    tensors: dict[int, list[TensorInfo]] = {}
    for name, kind, dims, size, start, file in header["tensors"]:
        tensors.setdefault(file, []).append(TensorInfo(name, tuple(dims), kind.upper(), start, size))
    scalars = {key: value for key, value in header["kv"].items() if not isinstance(value, (list, dict))}
    lists = {key: value for key, value in header["kv"].items() if isinstance(value, list)}
    arrays = {key: tuple(value) for key, value in lists.items() if not any(isinstance(part, str) for part in value)}
    counts = {key: len(values) for key, values in arrays.items()}
    counts |= {key: value["len"] for key, value in header["kv"].items() if isinstance(value, dict) and "len" in value}
    files = len(tensors)
    headers = [
        GgufHeader(
            file_name=f"{header['model_id']}.gguf",
            version=3,
            metadata=scalars | ({"split.count": files, "split.no": file} if files > 1 else {}),
            array_counts=counts,
            arrays=arrays,
            tensors=tuple(tensors[file]),
            alignment=32,
            data_offset=0,
            file_bytes=header["file_bytes"] if file == 0 else 0,
        )
        for file in sorted(tensors)
    ]
    return metadata_of(headers)


def choices_of_row(row: Mapping[str, Any]) -> LaunchChoices:
    """The launch choices that a recorded command line says."""
    has_device = row["build"].startswith("vulkan")
    return choices_from_argv(
        row["argv"],
        devices=("Vulkan0",) if has_device else (),
        build_number=_BUILD_NUMBERS[row["build"]],
        has_device_backend=has_device,
    )


def declared_of_row(row: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Declared bytes by place and buffer; what belongs to the host is summed over its kinds of buffer."""
    names = {"model": "weights"}
    result: dict[tuple[str, str], int] = {}
    for device, buffers in row["declared"].items():
        on_host = device.startswith("CPU") or device.endswith("_Host")
        for name, size in buffers.items():
            buffer = "repacked" if device == "CPU_REPACK" else names.get(name, name)
            key = ("host" if on_host else device, buffer)
            result[key] = result.get(key, 0) + size
    return result


def predicted_of_row(table: MemoryTable) -> dict[tuple[str, str], int | None]:
    """The estimate in the same form."""
    result: dict[tuple[str, str], int | None] = {}
    for place, buffers in table.by_place.items():
        weights = None if buffers.mapped is None or buffers.weights is None else buffers.mapped + buffers.weights
        parts = {
            "weights": weights,
            "repacked": buffers.repacked,
            "kv": buffers.kv,
            "recurrent": buffers.recurrent,
            "output": buffers.output,
            "compute": buffers.compute,
        }
        result |= {(place, buffer): size for buffer, size in parts.items() if size != 0}
    return result


def compare(rows: Iterable[Mapping[str, Any]], headers: Mapping[str, Mapping[str, Any]]) -> Iterator[Compared]:
    """Every declared or predicted figure of every row."""
    shapes: dict[str, ModelShape | None] = {}
    for row in rows:
        model_id = row["model_id"]
        if model_id not in shapes:
            shapes[model_id] = model_shape(metadata_of_row(headers[model_id]))
        shape = shapes[model_id]
        assert shape is not None
        yield from compare_row(row, shape)


def compare_row(row: Mapping[str, Any], shape: ModelShape) -> Iterator[Compared]:
    """Every declared or predicted figure of one row."""
    table = memory_table(shape, choices_of_row(row))
    placement = "cpu" if not table.launch.on_devices else "full" if _is_full(table) else "partial"
    declared, predicted = declared_of_row(row), predicted_of_row(table)
    for place, buffer in sorted(declared.keys() | predicted.keys()):
        yield Compared(
            row["id"],
            row["arch"],
            placement,
            place,
            buffer,
            declared.get((place, buffer), 0),
            predicted.get((place, buffer), 0),
        )
    observed = row["observed"]
    if placement == "cpu" and "declared_mmproj" not in row and observed["at"].startswith("after the first"):
        yield Compared(
            row["id"], row["arch"], placement, "host", "anonymous", observed["rss_anon"], table.first_request_bytes
        )


def _is_full(table: MemoryTable) -> bool:
    choices = table.launch.choices
    return HOST not in table.launch.places and not choices.n_cpu_moe and not choices.host_kv
