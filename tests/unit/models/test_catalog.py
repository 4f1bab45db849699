"""Names, clashes and settings of the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.contract import Capability, EngineKind
from supervisor.clock import SystemClock
from supervisor.config.schema import Config
from supervisor.events import EventBus, ModelBroken, ModelFound
from supervisor.models.catalog import Catalog, ModelEntry, build_catalog, explicit_files, explicit_parts
from supervisor.models.inventory import Inventory
from tests.fakes.model_reader import ModelReader, write_word

_ADAPTERS = {EngineKind.LLAMA_CPP: ModelReader().as_adapter()}


def _catalog(dirs: list[Path], models: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None) -> Catalog:
    config = Config.model_validate(
        {
            "model_dirs": [str(path) for path in dirs],
            "models": models or {},
            "engines": {"llama.cpp": {"defaults": defaults or {}}},
        }
    )
    inventory = Inventory(_ADAPTERS, None, EventBus(SystemClock()))
    found = inventory.scan(config.model_dirs, explicit_files(config), explicit_parts(config))
    return build_catalog(config, found, _ADAPTERS)


def _entry(catalog: Catalog, name: str) -> ModelEntry:
    entry = catalog.resolve(name)
    assert entry is not None
    return entry


def test_found_models_are_served_without_any_config(tmp_path: Path) -> None:
    """With defaults: what it serves comes from the file."""
    path = write_word(tmp_path / "a.gguf", "embed")
    entry = _entry(_catalog([tmp_path], defaults={"slots": 3}), "a")
    assert (entry.id, entry.files) == ("a", (path,))
    assert entry.serves == {Capability.EMBEDDINGS}
    assert (entry.keep_alive, entry.pinned, entry.preload, entry.build, entry.broken) == (600, False, False, None, None)
    assert entry.launch.model_dump(exclude_none=True) == {"slots": 3}


def test_a_configured_model_has_its_wishes_and_hides_the_found_name(tmp_path: Path) -> None:
    """The file that it names is not listed a second time under its own name."""
    path = write_word(tmp_path / "sub" / "a-q4.gguf")
    wishes = {
        "file": "sub/a-q4.gguf",
        "aliases": ["default", "a", "default"],
        "keep_alive": 60,
        "pinned": True,
        "preload": True,
        "build": "cuda",
        "allow_paging": True,
        "serves": ["chat", "embeddings"],
        "launch": {"slots": 2},
    }
    catalog = _catalog([tmp_path / "none", tmp_path], {"a": wishes}, {"slots": 8, "threads": 4})
    entry = _entry(catalog, "a")
    assert catalog.entries == (entry,)
    assert catalog.resolve("default") is entry
    assert catalog.resolve("a-q4") is None
    assert (entry.files, entry.aliases) == ((path,), ("default",))
    assert (entry.keep_alive, entry.pinned, entry.preload) == (60, True, True)
    assert (entry.build, entry.allow_paging) == ("cuda", True)
    assert entry.serves == {Capability.CHAT, Capability.EMBEDDINGS}
    assert entry.launch.model_dump(exclude_none=True) == {"slots": 2, "threads": 4}


def test_auto_in_a_model_undoes_a_default(tmp_path: Path) -> None:
    """What is written counts, even where it says "work it out"."""
    write_word(tmp_path / "a.gguf")
    catalog = _catalog([tmp_path], {"a": {"launch": {"threads": "auto"}}}, {"threads": 4, "slots": 2})
    assert _entry(catalog, "a").launch.model_dump(exclude_none=True) == {"slots": 2}


def test_a_configured_model_without_a_file_means_the_found_one_of_its_name(tmp_path: Path) -> None:
    """So that wishes can be given to a found model without naming its place."""
    path = write_word(tmp_path / "a.gguf")
    catalog = _catalog([tmp_path], {"a": {"pinned": True}, "b": {}})
    assert (_entry(catalog, "a").files, _entry(catalog, "a").pinned) == ((path,), True)
    broken = _entry(catalog, "b").broken
    assert broken is not None
    assert f"found in {tmp_path}" in broken


@pytest.mark.parametrize("absolute", [True, False])
def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path, absolute: bool) -> None:
    """The entry exists, broken: a client hears why, and not that there is no such model."""
    dirs = [tmp_path / "one", tmp_path / "two"]
    file = "/nowhere/x.gguf" if absolute else "x.gguf"
    catalog = _catalog(dirs, {"a": {"file": file}})
    places = [file] if absolute else [str(folder / file) for folder in dirs]
    broken = _entry(catalog, "a").broken
    assert broken is not None
    assert f"looked at {', '.join(places)}." in broken
    assert catalog.usable == ()


def test_a_relative_file_with_no_folders_to_look_in_is_broken() -> None:
    """The reason names model_dirs, which is what is missing."""
    broken = _entry(_catalog([], {"a": {"file": "x.gguf"}}), "a").broken
    assert broken is not None
    assert "model_dirs is empty" in broken


def test_parts_by_role_are_refused_in_words(tmp_path: Path) -> None:
    """An engine that takes one file must not drop the others in silence."""
    write_word(tmp_path / "a.gguf")
    broken = _entry(_catalog([tmp_path], {"a": {"files": {"model": "a.gguf"}}}), "a").broken
    assert broken is not None
    assert "`file`" in broken


def test_a_broken_file_is_a_broken_entry(tmp_path: Path) -> None:
    """Configured or found, with the reader's reason; it is not usable and serves nothing."""
    write_word(tmp_path / "a.gguf", "rubbish")
    write_word(tmp_path / "b.gguf", "rubbish")
    catalog = _catalog([tmp_path], {"mine": {"file": "a.gguf"}})
    assert [(entry.id, entry.broken, entry.serves) for entry in catalog.entries] == [
        ("mine", "a.gguf is broken.", frozenset()),
        ("b", "b.gguf is broken.", frozenset()),
    ]
    assert catalog.usable == ()


def test_of_two_found_models_of_one_name_the_first_folders_is_served(tmp_path: Path) -> None:
    """The other one is reported with both paths."""
    kept, dropped = (write_word(tmp_path / folder / "a.gguf") for folder in ("one", "two"))
    catalog = _catalog([tmp_path / "one", tmp_path / "two"])
    assert [entry.files for entry in catalog.entries] == [(kept,)]
    assert [(clash.name_wanted, clash.kept, clash.dropped) for clash in catalog.clashes] == [
        ("a", str(kept), str(dropped))
    ]


def test_both_of_two_files_of_one_name_can_be_served_by_config(tmp_path: Path) -> None:
    """A file that a configured model claims does not want its own name any more: no clash."""
    for folder in ("one", "two"):
        write_word(tmp_path / folder / "a.gguf")
    catalog = _catalog([tmp_path], {"first": {"file": "one/a.gguf"}})
    assert [entry.id for entry in catalog.entries] == ["first", "a"]
    assert catalog.clashes == ()


def test_names_go_to_ids_then_aliases_then_found_models(tmp_path: Path) -> None:
    """Each clash has one outcome that doesn't depend on the disk, and is reported."""
    for name in ("a", "b", "nick", "one", "two"):
        write_word(tmp_path / f"{name}.gguf")
    catalog = _catalog(
        [tmp_path],
        {"a": {"file": "one.gguf", "aliases": ["b", "nick"]}, "b": {"file": "two.gguf", "aliases": ["nick", "other"]}},
    )
    names = ("a", "b", "nick", "other")
    assert [_entry(catalog, name).id for name in names] == ["a", "b", "a", "b"]
    assert [entry.id for entry in catalog.entries] == ["a", "b"]
    assert [(clash.name_wanted, clash.dropped) for clash in catalog.clashes] == [
        ("b", "a"),
        ("nick", "b"),
        ("a", str(tmp_path / "a.gguf")),
        ("b", str(tmp_path / "b.gguf")),
        ("nick", str(tmp_path / "nick.gguf")),
    ]


def test_two_configured_models_may_share_a_file(tmp_path: Path) -> None:
    """One file with two sets of wishes is two models."""
    path = write_word(tmp_path / "a.gguf")
    catalog = _catalog([tmp_path], {"long": {"file": "a.gguf"}, "short": {"file": "a.gguf"}})
    assert [(entry.id, entry.files) for entry in catalog.entries] == [("long", (path,)), ("short", (path,))]


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("qwen3-8", "qwen3-8b"),
        ("QWEN3-8B", "qwen3-8b"),
        ("smol", "Smol2"),
        ("zzz", None),
        ("", None),
        ("q" * 10**6, None),
    ],
)
def test_the_nearest_name_is_offered_for_an_unknown_one(tmp_path: Path, asked: str, near: str | None) -> None:
    """Misspelt or in other case; nothing is offered for something else, and a huge name costs no time."""
    write_word(tmp_path / "qwen3-8b.gguf")
    write_word(tmp_path / "Smol2.gguf")
    write_word(tmp_path / "zzzz.gguf", "rubbish")
    assert _catalog([tmp_path]).nearest(asked) == near


def test_the_catalog_says_what_there_is_to_announce(tmp_path: Path) -> None:
    """Found, broken and clashing models, as events."""
    path = write_word(tmp_path / "a.gguf")
    bad = write_word(tmp_path / "b.gguf", "rubbish")
    write_word(tmp_path / "deep" / "a.gguf")
    catalog = _catalog([tmp_path], {"none": {"file": "none.gguf"}})
    missing = _entry(catalog, "none").broken
    assert catalog.events() == (
        ModelBroken("none", None, str(missing)),
        ModelFound("a", 1, path.stat().st_size, ("chat",)),
        ModelBroken("b", str(bad), "b.gguf is broken."),
        *catalog.clashes,
    )
    assert len(catalog.clashes) == 1
