"""Searching folders for models, and remembering what was read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.contract import EngineKind
from engines.registry import ADAPTERS
from supervisor.clock import SystemClock
from supervisor.events import Event, EventBus
from supervisor.models.inventory import FoundModel, Inventory
from supervisor.models.metadata_cache import CACHE_SCHEMA
from supervisor.models.walk import walk
from supervisor.storage import JsonFile
from tests.fakes.model_reader import ModelReader, write_word
from tests.fakes.tiny_gguf import write_gguf, write_parts

_KIND = EngineKind.LLAMA_CPP


class _Bench:
    """An inventory with its reader, its bus, and a cache that outlives it."""

    def __init__(self, state: Path) -> None:
        self.reader = ModelReader()
        self.bus = EventBus(SystemClock())
        self.cache = JsonFile(state / "models.json", CACHE_SCHEMA)
        self.inventory = Inventory({_KIND: self.reader.as_adapter()}, self.cache, self.bus)

    def scan(self, *dirs: Path, files: tuple[Path, ...] = ()) -> dict[str, FoundModel]:
        found = self.inventory.scan(dirs, [(_KIND, path) for path in files])
        assert len({model.id for model in found}) == len(found)
        return {model.id: model for model in found}

    def events(self) -> list[Event]:
        return [record.event for record in self.bus.since(0)]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty model folder."""
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def bench(tmp_path: Path) -> _Bench:
    """An inventory whose state folder is ``tmp_path``."""
    return _Bench(tmp_path)


def test_models_are_found_below_the_folder_with_their_facts(models: Path, bench: _Bench) -> None:
    """The name is the file's, without its ending; other files are not looked at; nothing is written beside them."""
    write_word(models / "a.gguf")
    write_word(models / "deep" / "er" / "b c.GGUF", "embed")
    write_word(models / "readme.txt", "broken")
    before = sorted(models.rglob("*"))
    found = bench.scan(models)
    assert list(found) == ["a", "b-c"]
    assert found["a"].path == models / "a.gguf"
    assert found["b-c"].metadata is not None
    assert found["b-c"].metadata.architecture == "embed"
    assert bench.reader.read == ["a.gguf", "b c.GGUF"]
    assert sorted(models.rglob("*")) == before


def test_hidden_files_and_folders_are_passed_over(models: Path, bench: _Bench) -> None:
    """Caches, bins, and the ``._x.gguf`` files that macOS leaves on foreign disks."""
    write_word(models / ".cache" / "a.gguf")
    write_word(models / "._b.gguf", "broken")
    assert bench.scan(models) == {}


def test_parts_are_one_model_without_its_part_number(models: Path, bench: _Bench) -> None:
    """Later parts are not models."""
    first = write_word(models / "big-00001-of-00002.gguf")
    second = write_word(models / "big-00002-of-00002.gguf")
    assert bench.scan(models)["big"].files == (first, second)


def test_broken_models_are_listed_with_the_reason_and_projectors_are_not(models: Path, bench: _Bench) -> None:
    """An owner must see that a file is broken; a projector beside a model is no fault."""
    write_word(models / "bad.gguf", "rubbish")
    write_word(models / "half-00001-of-00002.gguf")
    write_word(models / "mmproj.gguf", "projector")
    found = bench.scan(models)
    assert {name: model.broken for name, model in found.items()} == {
        "bad": "bad.gguf is broken.",
        "half": "half-00002-of-00002.gguf is missing.",
    }
    assert found["bad"].metadata is None


def test_a_file_named_explicitly_is_read_wherever_it_lies(tmp_path: Path, models: Path, bench: _Bench) -> None:
    """Outside the folders, hidden, with another ending; and said to be no model if it is none. Absent: not listed."""
    inside = write_word(models / "in.gguf")
    outside = write_word(tmp_path / ".hidden" / "out.bin")
    part = write_word(tmp_path / "x-00002-of-00002.gguf")
    projector = write_word(models / "mmproj.gguf", "projector")
    found = bench.scan(models, files=(inside, outside, part, projector, tmp_path / "none.gguf"))
    assert {name: model.broken for name, model in found.items()} == {
        "in": None,
        "out": None,
        "x": "x-00002-of-00002.gguf is a later part of a model. Name its first part.",
        "mmproj": "mmproj.gguf is a projector.",
    }
    assert bench.reader.read.count("in.gguf") == 1


def test_links_are_followed_but_never_in_circles(tmp_path: Path, models: Path, bench: _Bench) -> None:
    """A link to a file or a folder counts; a folder is searched once, by its own name before any link's."""
    stored = write_word(tmp_path / "elsewhere" / "blob")
    (models / "linked.gguf").symlink_to(stored)
    write_word(models / "real" / "r.gguf")
    (models / "again").symlink_to(models / "real")
    (models / "real" / "up").symlink_to(models)
    (models / "loop.gguf").symlink_to(models / "loop.gguf")
    write_word(tmp_path / "elsewhere" / "more" / "m.gguf")
    (models / "more").symlink_to(tmp_path / "elsewhere" / "more")
    found = bench.inventory.scan([models, models / "real", models])
    assert {
        model.path.relative_to(models).as_posix(): model.broken is None for model in found if model.id != "loop"
    } == {
        "linked.gguf": True,
        "real/r.gguf": True,
        "more/m.gguf": True,
    }


def test_the_first_folder_comes_first_and_shallow_before_deep(tmp_path: Path) -> None:
    """The order decides which of two models of one name is served, so it must not depend on the disk."""
    expected = [
        write_word(tmp_path / name)
        for name in ("two/b.gguf", "two/c.gguf", "two/a/x/d.gguf", "one/a.gguf", "one/z.gguf")
    ]
    assert list(walk([tmp_path / "two", tmp_path / "one"], (".gguf",)).files) == expected


async def test_what_is_skipped_is_said_once(tmp_path: Path, models: Path, bench: _Bench) -> None:
    """A folder that is not there and a name that can't be spoken are reported, at the first search only."""
    (models / "bad\n.gguf").write_text("chat")
    (models / os.fsdecode(b"\xff.gguf")).write_text("chat")
    write_word(models / "good.gguf")
    for _ in range(2):
        found = await bench.inventory.refresh([tmp_path / "none", models])
        assert [model.id for model in found] == ["good"]
    facts = [event.facts() for event in bench.events()]
    assert [(fact["path"], fact["reason"].split(":")[0]) for fact in facts] == [
        (str(tmp_path / "none"), "can't be read"),
        (f"{models}/bad?.gguf", "its name holds control characters or is not UTF-8"),
        (f"{models}/\\xff.gguf", "its name holds control characters or is not UTF-8"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_skipped(models: Path) -> None:
    """The rest is still searched."""
    write_word(models / "open.gguf")
    write_word(models / "shut" / "x.gguf").parent.chmod(0)
    walked = walk([models], (".gguf",))
    (models / "shut").chmod(0o700)
    assert walked.files == (models / "open.gguf",)
    assert walked.skipped[0].path == str(models / "shut")


def test_a_model_is_read_once_for_as_long_as_it_does_not_change(tmp_path: Path, models: Path) -> None:
    """Also by the next daemon: the same facts come from the state folder, types and all."""
    write_word(models / "a-00001-of-00002.gguf")
    write_word(models / "a-00002-of-00002.gguf", "chat")
    first, second = _Bench(tmp_path), _Bench(tmp_path)
    facts = first.scan(models)["a"].metadata
    assert first.scan(models)["a"].metadata == facts
    again = second.scan(models)["a"].metadata
    assert again == facts
    assert again is not None
    assert [type(value) for value in again.fields.values()] == [int, float, bool, str, int]
    assert (first.reader.read, second.reader.read) == (["a-00001-of-00002.gguf"], [])


def _longer(path: Path) -> None:
    path.write_text("embed")


def _touched(path: Path) -> None:
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def _replaced(path: Path) -> None:
    facts = path.stat()
    fresh = write_word(path.with_name("fresh"))
    os.utime(fresh, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    fresh.rename(path)


@pytest.mark.parametrize("change", [_longer, _touched, _replaced])
@pytest.mark.parametrize("part", [1, 2])
def test_a_changed_file_is_read_again(models: Path, bench: _Bench, change: Callable[[Path], None], part: int) -> None:
    """Whether its size, its time or its inode changed, in any part."""
    for number in (1, 2):
        write_word(models / f"a-0000{number}-of-00002.gguf")
    bench.scan(models)
    change(models / f"a-0000{part}-of-00002.gguf")
    bench.scan(models)
    assert len(bench.reader.read) == 2


def test_a_failed_read_is_not_remembered(models: Path, bench: _Bench) -> None:
    """A file that could not be read, for whatever reason, gets another chance at each search."""
    write_word(models / "a.gguf", "rubbish")
    bench.scan(models)
    bench.scan(models)
    assert bench.reader.read == ["a.gguf", "a.gguf"]
    assert not bench.cache.path.exists()


def test_models_that_are_gone_are_forgotten(models: Path, bench: _Bench) -> None:
    """The cache does not grow for ever."""
    gone = write_word(models / "gone.gguf")
    write_word(models / "stays.gguf")
    bench.scan(models)
    gone.unlink()
    bench.scan(models)
    kept = orjson.loads(bench.cache.path.read_bytes())["models"]
    assert list(kept) == [f"llama.cpp:{models}/stays.gguf"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 0}', b"\xff\xfe", b'"x"'])
async def test_a_bad_cache_file_is_set_aside_and_costs_nothing(models: Path, bench: _Bench, content: bytes) -> None:
    """The models are read again, the owner hears of it once, and the bad file is kept to look at."""
    write_word(models / "a.gguf")
    bench.cache.path.write_bytes(content)
    assert [model.broken for model in await bench.inventory.refresh([models])] == [None]
    assert bench.cache.path.with_name("models.json.bad").read_bytes() == content
    assert [event.name() for event in bench.events()] == ["state_file_unusable"]
    assert bench.cache.read()[1] is None


@pytest.mark.parametrize(
    "damage",
    [
        {"models": []},
        {"models": {"KEY": 7}},
        {"models": {"KEY": {"stamps": "STAMPS"}}},
        {"models": {"KEY": {"stamps": "STAMPS", "metadata": {"format": "x"}}}},
        {"models": {"KEY": {"stamps": "STAMPS", "metadata": ["x"]}}},
    ],
)
def test_a_nonsense_entry_is_read_again(tmp_path: Path, models: Path, damage: dict[str, Any]) -> None:
    """A cache that is JSON but not ours inside must not raise, nor be believed."""
    path = write_word(models / "a.gguf")
    facts = path.stat()
    stamps = f"[[{facts.st_size},{facts.st_mtime_ns},{facts.st_ino}]]"
    text = orjson.dumps({"schema": CACHE_SCHEMA, **damage}).decode()
    (tmp_path / "models.json").write_text(text.replace("KEY", f"llama.cpp:{path}").replace('"STAMPS"', stamps))
    bench = _Bench(tmp_path)
    assert bench.scan(models)["a"].broken is None
    assert bench.reader.read == ["a.gguf"]


async def test_a_cache_that_can_not_be_written_is_said_and_survived(tmp_path: Path, models: Path) -> None:
    """A full disk or a read-only state folder: the models are there all the same."""
    write_word(models / "a.gguf")
    bench = _Bench(tmp_path / "no" / "folder")
    assert [model.id for model in await bench.inventory.refresh([models])] == ["a"]
    assert [event.name() for event in bench.events()] == ["state_file_unusable"]


def test_without_a_cache_file_nothing_is_written(tmp_path: Path, models: Path) -> None:
    """``plan`` looks at models without touching the state folder."""
    write_word(models / "a.gguf")
    before = sorted(tmp_path.rglob("*"))
    inventory = Inventory({_KIND: ModelReader().as_adapter()}, None, EventBus(SystemClock()))
    assert [model.id for model in inventory.scan([models])] == ["a"]
    assert sorted(tmp_path.rglob("*")) == before


def test_real_headers_pass_through_the_cache_unchanged(tmp_path: Path, models: Path) -> None:
    """With the real adapters: what the second daemon takes from the cache is what the first one read."""
    write_gguf(models / "tiny.gguf")
    write_parts(models, "split", 3)
    cut = write_gguf(models / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-300])
    cache = JsonFile(tmp_path / "models.json", CACHE_SCHEMA)
    searches = [Inventory(ADAPTERS, cache, EventBus(SystemClock())).scan([models]) for _ in range(2)]
    assert searches[0] == searches[1]
    assert [(model.id, len(model.files), model.broken is None) for model in searches[0]] == [
        ("cut", 1, False),
        ("split", 3, True),
        ("tiny", 1, True),
    ]
