"""The memory estimate against 624 recorded launches of two real builds: context, buffers and the process itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engines.llama_cpp.memory_launch import resolve
from engines.llama_cpp.memory_model import ModelShape, model_shape
from tests.support.memory_rows import (
    Compared,
    choices_of_row,
    columns,
    compare,
    metadata_of_row,
    recorded_headers,
    recorded_rows,
)

_MIB = 2**20
_DECLARED = ("weights", "repacked", "kv", "recurrent", "output")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The recorded launches."""
    return recorded_rows()


@pytest.fixture(scope="module")
def shapes() -> Mapping[str, ModelShape]:
    """The recorded models."""
    found = {name: model_shape(metadata_of_row(header)) for name, header in recorded_headers().items()}
    return {name: shape for name, shape in found.items() if shape is not None}


@pytest.fixture(scope="module")
def figures(rows: list[dict[str, Any]]) -> list[Compared]:
    """Every figure of every launch, predicted and declared."""
    return list(compare(rows, recorded_headers()))


def _misses(figures: list[Compared], *buffers: str) -> list[Compared]:
    return [figure for figure in figures if figure.buffer in buffers and figure.predicted != figure.declared]


def test_every_recorded_model_has_a_shape(shapes: Mapping[str, ModelShape]) -> None:
    """A header that said too little would leave its launches out of every other test here."""
    assert shapes.keys() == recorded_headers().keys()


def test_contexts_are_as_the_server_said(rows: list[dict[str, Any]], shapes: Mapping[str, ModelShape]) -> None:
    """Tokens of all slots and of one, slots, batch and micro-batch, on every row."""
    for row in rows:
        launch = resolve(choices_of_row(row), shapes[row["model_id"]])
        facts = row["log_facts"]
        said = {key: facts[key] for key in ("n_ctx", "n_ctx_seq", "n_seq_max", "n_batch", "n_ubatch")}
        predicted = (launch.context, launch.slot_context, launch.slots, launch.batch, launch.ubatch)
        assert tuple(said.values()) == predicted, row["id"]


@pytest.mark.parametrize("buffer", _DECLARED)
def test_buffers_are_exact_on_every_row(figures: list[Compared], buffer: str) -> None:
    """Weights where they lie, repacked copies, caches, states and outputs, to the byte."""
    assert not _misses(figures, buffer)


def test_compute_buffers_are_exact_on_every_row(figures: list[Compared]) -> None:
    """On the CPU, with all layers on a device, and with the layers parted: the replay gives the very bytes."""
    assert not _misses(figures, "compute")


def test_anonymous_memory_is_within_8_mib(figures: list[Compared]) -> None:
    """What the process took after a first short request, where no device takes part."""
    found = [figure for figure in figures if figure.buffer == "anonymous"]
    assert len(found) == 492
    errors = [(figure.predicted or 0) - figure.declared for figure in found]
    assert -4 * _MIB < min(errors) <= max(errors) < 4 * _MIB


def test_the_report_counts_every_figure(figures: list[Compared]) -> None:
    """One line for each placement, place and buffer, and none left out."""
    lines = columns(figures)
    assert sum(line.rows for line in lines) == len(figures)
    compute = {line.placement: line for line in lines if line.buffer == "compute" and line.place == "host"}
    assert {name: line.rows for name, line in compute.items()} == {"cpu": 495, "full": 52, "partial": 77}
    assert all(line.exact == line.rows and line.least == line.most == 0 for line in compute.values())


def test_a_wrong_figure_is_seen(rows: list[dict[str, Any]]) -> None:
    """The comparison itself can fail: a declared byte more is a miss, and counted."""
    row = dict(rows[1])
    row["declared"] = {"CPU": {**row["declared"]["CPU"], "kv": row["declared"]["CPU"]["kv"] + 1}}
    figures = list(compare([row], recorded_headers()))
    assert [figure.buffer for figure in _misses(figures, "kv")] == ["kv"]
    line = next(line for line in columns(figures) if line.buffer == "kv")
    assert (line.exact, line.least, line.most) == (0, -1, -1)
