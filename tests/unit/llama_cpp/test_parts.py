"""Files that go with a model: a projector and a draft model, from the config to the command and the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.contract import BuildFacts, Capability, EngineKind, ModelFileError, PlanDraft
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.command import build_command
from engines.llama_cpp.memory import table_of
from engines.llama_cpp.parts import read_parts
from engines.llama_cpp.settings import LlamaCppSettings
from engines.registry import ADAPTERS
from supervisor.clock import SystemClock
from supervisor.config.schema import Config
from supervisor.events import EventBus
from supervisor.models.catalog import ModelEntry, build_catalog, explicit_files, explicit_parts
from supervisor.models.inventory import Inventory
from tests.fakes.tiny_gguf import Tensor, write_gguf, write_parts
from tests.support.llama_drafts import llama_draft
from tests.support.memory_rows import metadata_of_row, recorded_headers

_MIB = 2**20
_PROJECTOR = {
    "general.architecture": "clip",
    "general.type": "mmproj",
    "clip.projector_type": "gemma3",
    "clip.vision.image_size": 224,
    "clip.vision.patch_size": 14,
    "clip.vision.embedding_length": 384,
    "clip.vision.feed_forward_length": 1152,
}
_ANY = BuildFacts("10068", None, ())
_NEW = BuildFacts("10068", frozenset({"--model-draft", "--spec-type", "--spec-draft-n-max", "--device-draft"}), ())


@pytest.fixture
def files(tmp_path: Path) -> Mapping[str, Path]:
    """A model, a projector and a smaller model."""
    eyes = (Tensor("v.patch_embd.weight", (1024, 256)), Tensor("v.blk.0.ffn_up.weight", (1024, 256)))
    return {
        "draft": write_gguf(tmp_path / "small.gguf"),
        "mmproj": write_gguf(tmp_path / "mmproj.gguf", _PROJECTOR, eyes),
        "model": write_gguf(tmp_path / "m.gguf"),
    }


def _draft(files: Mapping[str, Path], **changes: Any) -> PlanDraft:
    metadata = read_parts(files)
    return llama_draft(metadata, tuple(files[role] for role in metadata.roles), **{"build": _NEW, **changes})


def _entry(folder: Path, model: Mapping[str, object]) -> ModelEntry:
    config = Config.model_validate({"model_dirs": [str(folder)], "models": {"m": model}})
    inventory = Inventory({EngineKind.LLAMA_CPP: LlamaCppAdapter()}, None, EventBus(SystemClock()))
    found = inventory.scan(config.model_dirs, explicit_files(config), explicit_parts(config))
    entry = build_catalog(config, found, ADAPTERS).resolve("m")
    assert entry is not None
    return entry


def test_files_beside_a_model_are_read_with_it(files: Mapping[str, Path]) -> None:
    """The facts are the model's; those of the others stand beside them, whatever order the config has."""
    metadata = read_parts(files)
    assert metadata.roles == ("model", "mmproj", "draft")
    assert metadata.architecture == "llama"
    assert metadata.beside["mmproj"].tensor_bytes == 2 * _MIB
    assert metadata.beside["draft"].block_count == 3
    assert metadata.file_bytes == sum(path.stat().st_size for path in files.values())


@pytest.mark.parametrize("how", ["file", "files"])
def test_a_config_names_them_beside_file_or_all_under_files(files: Mapping[str, Path], how: str) -> None:
    """The model's own file comes first, since its pages are known by it; the draft model is still one of its own."""
    folder = files["model"].parent
    named = {"mmproj": "mmproj.gguf", "draft": "small.gguf"}
    model = {"file": "m.gguf", "files": named} if how == "file" else {"files": {**named, "model": "m.gguf"}}
    entry = _entry(folder, model)
    assert entry.broken is None
    assert [path.name for path in entry.files] == ["m.gguf", "mmproj.gguf", "small.gguf"]
    assert LlamaCppAdapter().takes_media(entry.launch, entry.metadata)


def test_the_first_of_several_files_stands_for_a_split_model(files: Mapping[str, Path], tmp_path: Path) -> None:
    """As everywhere: its parts are found by their names."""
    first = write_parts(tmp_path / "split", "big", 3)[0]
    metadata = read_parts({"model": first, "mmproj": files["mmproj"]})
    assert metadata.split_count == 3


def test_a_file_that_is_not_what_its_role_says_is_told(files: Mapping[str, Path]) -> None:
    """A model as projector, a projector as model or draft, none at all."""
    with pytest.raises(ModelFileError, match="no projector"):
        read_parts({**files, "mmproj": files["draft"]})
    with pytest.raises(ModelFileError, match="projector for pictures"):
        read_parts({**files, "draft": files["mmproj"]})
    with pytest.raises(ModelFileError, match="names no model"):
        read_parts({"mmproj": files["mmproj"]})
    assert "no model" in (_entry(files["model"].parent, {"files": {"mmproj": "mmproj.gguf"}}).broken or "")


def test_the_command_names_them_and_where_they_lie(files: Mapping[str, Path]) -> None:
    """On the host where no layer is on a device; the draft model goes whole to the first device otherwise."""
    settings = LlamaCppSettings(draft_tokens=5)
    host = build_command(_draft(files, settings=settings), BuildFacts(None, None, None)).argv
    assert host[4:6] == ("--mmproj", str(files["mmproj"]))
    assert "--no-mmproj-offload" in host
    assert host[host.index("--device-draft") + 1] == "none"
    assert host[host.index("--spec-draft-n-max") + 1] == "5"

    cards = _draft(files, settings=settings, devices=("CUDA0", "CUDA1"), n_gpu_layers=3)
    made = build_command(cards, BuildFacts(None, _NEW.flags and _NEW.flags | {"--mmproj"}, None))
    assert made.argv[made.argv.index("--device-draft") + 1] == "CUDA0"
    assert made.argv[made.argv.index("--spec-type") + 1] == "draft-simple"
    assert "--no-mmproj-offload" not in made.argv
    assert any("2 MiB of weights" in choice.reason for choice in made.choices)

    older = build_command(cards, BuildFacts(None, frozenset({"--model-draft", "--draft-max"}), None)).argv
    assert older[older.index("--draft-max") + 1] == "5"
    assert "--spec-type" not in older


def test_extra_arguments_take_their_place(files: Mapping[str, Path]) -> None:
    """Under any name; the plan says that it does not count what they load."""
    settings = LlamaCppSettings(extra_args=("-mm", "/other.gguf", "-md", "/second.gguf"))
    made = build_command(_draft(files, settings=settings), BuildFacts(None, None, None))
    assert "--mmproj" not in made.argv
    assert "--model-draft" not in made.argv
    assert {choice.choice for choice in made.choices if "not in the memory" in choice.reason} == {"-mm", "-md"}


def test_what_only_embeds_guesses_nothing(files: Mapping[str, Path]) -> None:
    """A draft model is of no use to it, and takes no memory."""
    draft = _draft(files, capabilities=frozenset({Capability.EMBEDDINGS}))
    assert "--model-draft" not in build_command(draft, BuildFacts(None, None, None)).argv
    table, without = table_of(draft), table_of(_draft({"model": files["model"]}, capabilities=draft.capabilities))
    assert table is not None
    assert without is not None
    assert table.by_place["host"].kv == without.by_place["host"].kv


def test_their_memory_is_counted_where_they_lie(files: Mapping[str, Path]) -> None:
    """A draft model has weights, caches of 16 bits and buffers of its own; a projector weights and working memory."""
    header = next(row for row in recorded_headers().values() if row["kv"]["general.architecture"] == "gemma3")
    own = metadata_of_row(header)
    projector = read_parts(files).beside["mmproj"]
    both = replace(own, roles=("model", "mmproj", "draft"), beside={"mmproj": projector, "draft": own})
    names = tuple(files[role] for role in both.roles)
    for devices, place in (((), "host"), (("CUDA0",), "CUDA0")):
        launch = {"devices": devices, "n_gpu_layers": 99 if devices else None, "cache_type": "q8_0", "build": _ANY}
        with_all = table_of(replace(_draft(files, **launch), metadata=both, files=names))
        alone = table_of(replace(_draft(files, **launch), metadata=own, files=names[:1]))
        plain = table_of(replace(_draft(files, **launch | {"cache_type": "f16"}), metadata=own, files=names[:1]))
        assert with_all is not None
        assert alone is not None
        assert plain is not None
        found, one, second = (table.by_place[place] for table in (with_all, alone, plain))
        assert found.projector == 2 * _MIB
        assert found.kv == (one.kv or 0) + (second.kv or 0)
        assert (found.mapped, found.weights) == (2 * (one.mapped or 0), 2 * (one.weights or 0))
        assert (found.compute or 0) > 2 * (one.compute or 0)
        assert with_all.upper.get("CUDA0", 0) < 1024 * _MIB  # one context of the device, not two
