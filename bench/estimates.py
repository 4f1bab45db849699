"""Predicted memory against what llama-server declares and takes: buffer by buffer, and the process's own memory.

First, 624 launches that were recorded (two builds, 20 architectures). Then launches made here and now: the same toy
models, rebuilt without weights from their headers, and a real model, over contexts, slots, KV types, the CPU, and a
software Vulkan device where there is one. Last, what reading the header of a model with a large vocabulary takes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.engines import add_engine_options, real_build, real_model
from bench.support.header_walk import header_walk
from bench.support.report import Progress, Table, mebibytes, options, run
from bench.support.weighed import Launched, launched
from engines.contract import BuildFacts, MemoryEstimate
from engines.formats.gguf import read_metadata
from engines.llama_cpp.memory import build_number
from engines.llama_cpp.memory_argv import choices_from_argv
from engines.llama_cpp.memory_model import ModelShape, model_shape
from engines.llama_cpp.memory_plan import MemoryTable, full_batch_bytes, memory_table, pool_estimates
from supervisor.planning.corrections import correct, learn
from tests.support.memory_rows import columns, compare, predicted_of_row, recorded_headers, recorded_rows
from tests.support.real_engine import SOFTWARE_TWICE, facts_of
from tests.support.recorded_models import write_model

_MIB = 2**20
_ROUNDED = 0.011  # MiB: the log has two decimals, and at most two buffers of a kind lie at one place
_ANONYMOUS = 8.0  # MiB
_SECOND = 0.01
_PARTS = {"weights": "weights", "repacked": "weights", "kv": "kv", "recurrent": "kv", "compute": "compute"} | {
    "output": "compute"
}
_PLAIN = ("-t", "1", "--fit", "off", "--no-warmup", "--cache-ram", "0")
_CPU = ("-dev", "none")
# Context, slots and KV type of the toys' launches, and of the real model's.
_TOYS = ((2048, 1, "f16"), (4096, 2, "q8_0"))
_REAL = tuple((ctx, slots, kind) for ctx in (2048, 16384) for slots in (1, 4) for kind in ("f16", "q8_0", "q4_0"))
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class _Taken:
    """One launch and its repetition, in MiB of the process's own memory.

    Attributes:
        predicted, taken: before and after the first, in use.
        expected, again: at the second, ready and in use: what was learned, and what was seen.
    """

    model: str
    predicted: float
    taken: float
    expected: tuple[float, float]
    again: tuple[float, float]

    def off(self, place: int) -> float:
        """Error of the second plan, as a share."""
        return abs(self.expected[place] / self.again[place] - 1)


@dataclass(slots=True)
class _Group:
    """Figures of one kind, in MiB."""

    figures: int = 0
    exact: int = 0
    errors: list[float] = field(default_factory=list)

    def add(self, predicted: float | None, declared: float) -> None:
        self.figures += 1
        if predicted is None:
            return
        self.exact += abs(predicted - declared) <= 2 * _ROUNDED
        self.errors.append(predicted / declared - 1 if declared > 2 * _ROUNDED else 0.0)


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--only", nargs="+", help="architectures to launch, or `real`; then nothing else is measured")
    parser.add_argument("--places", choices=("all", "cpu"), default="all", help="where layers lie (default all)")
    run("estimates", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """Three tables, and that of the header walk."""
    say = Progress()
    build = real_build(chosen.engine)
    facts = facts_of(build.executable, {**build.env, **SOFTWARE_TWICE})
    say("recorded launches")
    tables = [] if chosen.only else [_recorded(quick=chosen.quick)]
    declared: defaultdict[tuple[str, str], _Group] = defaultdict(_Group)
    taken: list[_Taken] = []
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        for model, shape in _models(Path(name), real_model(chosen.model), quick=chosen.quick):
            if chosen.only and model.parent.name not in chosen.only:
                continue
            for argv in _launches(model, shape, facts, quick=chosen.quick):
                if chosen.places == "cpu" and "none" not in argv:
                    continue
                say(f"{model.parent.name} {' '.join(argv)}")
                env = {**build.env, **SOFTWARE_TWICE}
                table = _predicted(shape, argv, facts)
                command = [str(build.executable), "-m", str(model), *argv, *_PLAIN]
                seen = launched(command, env, _full_batch(table))
                _compare(table, seen, declared)
                if seen.anonymous is not None:
                    own = (full_batch_bytes(shape, table) or 0) / _MIB
                    second = launched(command, env, _full_batch(table))
                    again = ((second.ready or 0) / _MIB, (second.anonymous or 0) / _MIB)
                    taken.append(_Taken(model.parent.name, own, seen.anonymous / _MIB, _learned(table, seen), again))
        tables += [_declared(declared), _taken(taken), *([] if chosen.only else [header_walk(Path(name))])]
    return tables


def _models(folder: Path, real: Path, *, quick: bool) -> Iterator[tuple[Path, ModelShape]]:
    """One of each architecture, then the real one."""
    architectures: dict[str, Mapping[str, Any]] = {}
    for header in recorded_headers().values():
        if header["kv"]["general.file_type"] == 1:
            architectures.setdefault(str(header["kv"]["general.architecture"]), header)
    for name in sorted(architectures)[: 2 if quick else None]:
        own = folder / name
        own.mkdir()
        yield from _with_shape(write_model(architectures[name], own)[0])
    own = folder / "real"
    own.mkdir()
    link = own / "m.gguf"
    link.symlink_to(real)
    yield from _with_shape(link)


def _with_shape(path: Path) -> Iterator[tuple[Path, ModelShape]]:
    shape = model_shape(read_metadata((path,)))
    if shape is not None:
        yield path, shape


def _launches(model: Path, shape: ModelShape, facts: BuildFacts, *, quick: bool) -> Iterator[tuple[str, ...]]:
    layers = len(shape.layers) + 1
    places: list[tuple[str, ...]] = [_CPU]
    if facts.devices:
        places += [("-dev", "Vulkan0", "-ngl", str(count)) for count in (layers, layers // 2)]
        places += [("-dev", "Vulkan0,Vulkan1", "-ngl", str(layers), "-ts", f"{layers - layers // 3},{layers // 3}")]
    serves = ("--embeddings",) if shape.encoder else ()
    sizes = _REAL if model.parent.name == "real" else _TOYS
    for ctx, slots, kind in sizes[:1] if quick else sizes:
        if kind != "f16" and not _fills_blocks(shape):
            kind = "f16"  # noqa: PLW2901  llama-server refuses a quantised cache for such heads
        # On devices, where a launch takes long, one size of each kind will do.
        for place in places if slots == 1 and ctx == _TOYS[0][0] else [_CPU]:
            kinds = ("-ctk", kind, "-ctv", kind)
            yield ("-c", str(ctx), "-np", str(slots), "-no-kvu", *kinds, *place, *serves)


def _fills_blocks(shape: ModelShape) -> bool:
    cached = [layer for layer in shape.layers if layer.owns_cache]
    return all(layer.key % _BLOCK == 0 and layer.value % _BLOCK == 0 for layer in cached)


def _predicted(shape: ModelShape, argv: tuple[str, ...], facts: BuildFacts) -> MemoryTable:
    said = (*argv, *_PLAIN)
    choices = choices_from_argv(said, build_number=build_number(facts), has_device_backend=True)
    return memory_table(shape, choices)


def _full_batch(table: MemoryTable) -> int | None:
    """Tokens of a prompt that fills one batch; None where a device takes part, whose memory the process holds here."""
    return None if table.launch.on_devices else min(table.launch.ubatch, table.launch.slot_context - 8)


def _compare(table: MemoryTable, seen: Launched, groups: Mapping[tuple[str, str], _Group]) -> None:
    launch = table.launch
    where = "cpu" if not launch.on_devices else "device, all layers" if launch.is_whole else "device, some layers"
    if len(launch.choices.devices) > 1:
        where = "two devices"
    predicted = predicted_of_row(table)
    for key in predicted.keys() | seen.declared.keys():
        size = predicted.get(key, 0)
        groups[where, key[1]].add(None if size is None else size / _MIB, seen.declared.get(key, 0.0))


def _recorded(*, quick: bool) -> Table:
    rows = recorded_rows()
    rows = rows[:: 32 if quick else 1]
    table = Table(f"Predicted against {len(rows)} recorded launches", ["buffer", "figures", "exact", "worst error"])
    found: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for column in columns(compare(rows, recorded_headers())):
        found[column.buffer, column.placement].append(column)
    for (buffer, placement), parts in sorted(found.items()):
        least, most = min(part.least for part in parts), max(part.most for part in parts)
        figures, exact = sum(part.rows for part in parts), sum(part.exact for part in parts)
        worst = "0" if not least and not most else f"{mebibytes(least)} to {mebibytes(most)}"
        table.row(f"{buffer}, {placement}", str(figures), "-" if buffer == "anonymous" else str(exact), worst)
    table.notes.append("exact: to the byte; cpu, full and partial: no layer, all, some on a software Vulkan device")
    table.notes.append("anonymous: the process's own memory after a first short completion")
    return table


def _declared(groups: Mapping[tuple[str, str], _Group]) -> Table:
    table = Table("Predicted against declared, launched here", ["buffer", "figures", "exact", "worst error"])
    for (where, buffer), group in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0])):
        worst = max(group.errors, key=abs, default=0.0)
        table.row(f"{buffer}, {where}", str(group.figures), str(group.exact), f"{worst:+.2%}")
    every = sum(group.figures for group in groups.values())
    exact = sum(group.exact for group in groups.values())
    table.notes.append(f"exact: within the two decimals that the log has; {exact} of {every} figures")
    return table


def _learned(table: MemoryTable, first: Launched) -> tuple[float, float]:
    """MiB that the next plan expects of the process, ready and in use, after it was seen so once."""
    by_part: defaultdict[str, float] = defaultdict(float)
    for (_, buffer), size in first.declared.items():
        by_part[_PARTS[buffer]] += size
    predicted = pool_estimates(table)["host"]
    parts = {part: round(size * _MIB) for part, size in by_part.items()}
    declared = {"host": MemoryEstimate(**parts, mapped=predicted.mapped)}
    learned = learn(None, declared, {"host": first.ready or 0}, just_ready=True)
    learned = learn(learned, declared, {"host": first.anonymous or 0})
    better = correct({"host": predicted}, learned)["host"]
    return (better.ready or 0) / _MIB, learned.held["host"] / _MIB


def _taken(taken: Iterable[_Taken]) -> Table:
    rows = list(taken)
    columns = ["model", "launches", "taken", "first plan, less taken", "second plan: ready", "second plan: in use"]
    table = Table("Own memory (RssAnon) after one full batch, on the CPU", columns)
    by_model: defaultdict[str, list[_Taken]] = defaultdict(list)
    for row in rows:
        by_model[row.model].append(row)
    for name, launches in by_model.items():
        sizes = [row.taken for row in launches]
        cells = [_range(row.predicted - row.taken for row in launches)]
        cells += [f"{max(row.off(place) for row in launches):.2%}" for place in range(2)]
        table.row(name, str(len(launches)), f"{min(sizes):.1f} to {max(sizes):.1f} MiB", *cells)
    within = sum(abs(row.predicted - row.taken) <= _ANONYMOUS for row in rows)
    met = "met" if within == len(rows) else "MISSED"
    table.notes.append(f"target: within {_ANONYMOUS:g} MiB before any launch: {within} of {len(rows)}: {met}")
    again = sum(max(row.off(0), row.off(1)) <= _SECOND for row in rows)
    met = "met" if again == len(rows) else "MISSED"
    table.notes.append(f"target: within {_SECOND:.0%} of RssAnon at the second launch: {again} of {len(rows)}: {met}")
    table.notes.append(
        "first plan: buffers, program, one context checkpoint, what a batch touches of the compute buffer in an empty "
        "context, and the output buffer grown to it"
    )
    table.notes.append("second plan: the same launch again, against what the first was seen to hold, ready and in use")
    return table


def _range(sizes: Iterable[float]) -> str:
    known = list(sizes)
    return f"{min(known):+.1f} to {max(known):+.1f} MiB"


if __name__ == "__main__":
    main()
