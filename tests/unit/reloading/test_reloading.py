"""Reload: a bad file changes nothing, a good one is applied once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.contract import ModelMetadata
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.config.diff import ConfigDiff, diff
from supervisor.config.load import LoadedConfig
from supervisor.config.schema import Config, ModelConfig
from supervisor.errors import ConfigError
from supervisor.events import ConfigRejected, ConfigReloaded, ConfigReloading, EventBus
from supervisor.reloading import Reloader, why_relaunch
from tests.fakes.clock import HandClock
from tests.fakes.instances import model_entry

ENTRY = model_entry()
NOTHING = ConfigDiff()


class Bench:
    """A reloader over a file that is a variable."""

    def __init__(self) -> None:
        self.bus = EventBus(HandClock())
        self.file: LoadedConfig | ConfigError = LoadedConfig(Config(), None)
        self.applied: list[tuple[Config, ConfigDiff]] = []
        self.reloader = Reloader(LoadedConfig(Config(), None), self.read, self.apply, self.bus)

    def read(self) -> LoadedConfig:
        """What the file holds now."""
        if isinstance(self.file, ConfigError):
            raise self.file
        return self.file

    async def apply(self, config: Config, found: ConfigDiff) -> dict[str, list[str]]:
        """Remembered."""
        self.applied.append((config, found))
        return {"listed": ["late"], "gone": []}

    def said(self) -> list[object]:
        """How reloads ended; that one begins is only told to the service manager."""
        events = (record.event for record in self.bus.since(0))
        return [event for event in events if not isinstance(event, ConfigReloading)]


async def test_a_bad_file_keeps_the_old_config_and_says_why() -> None:
    """Nothing is applied; the caller gets the error, and the event tells everyone."""
    bench = Bench()
    bench.file = ConfigError("config_invalid", "no such key: brokker")
    before = bench.reloader.config
    with pytest.raises(ConfigError):
        await bench.reloader.reload("test")
    await bench.reloader.reload_quietly("test")
    assert bench.applied == []
    assert bench.reloader.config is before
    assert bench.said() == [ConfigRejected("test", "no such key: brokker")] * 2


async def test_what_changed_is_applied_and_listed() -> None:
    """A new model is in the answer and in what is applied; the next reload starts from there."""
    bench = Bench()
    config = Config(models={"m": ModelConfig(file=Path("m.gguf"))})
    bench.file = LoadedConfig(config, None)
    answer = await bench.reloader.reload("test")
    assert answer["models"]["added"] == ["m"]
    assert answer["models"]["listed"] == ["late"]
    assert bench.applied[0][0].models.keys() == {"m"}
    assert not (await bench.reloader.reload("test"))["changed"]
    assert [event.cause for event in bench.said() if isinstance(event, ConfigReloaded)] == ["test", "test"]


def test_an_engine_goes_on_unless_it_runs_with_something_else() -> None:
    """Aliases and keep-alive are no reason; other files, settings or a touched config are."""
    live = replace(ENTRY, aliases=("x",), keep_alive=1.0)
    assert why_relaunch(ENTRY, live, NOTHING, configured=True) is None
    metadata = ModelMetadata(format="gguf", architecture="llama", file_bytes=1, tensor_bytes=1)
    assert why_relaunch(ENTRY, replace(ENTRY, metadata=metadata), NOTHING, configured=True) == "its files changed"
    other = replace(ENTRY, settings=LlamaCppSettings(ctx_size=1024))
    assert why_relaunch(ENTRY, other, NOTHING, configured=True) == "its config changed"
    old, new = (Config(models={"m": ModelConfig(file=Path("m.gguf"), build=build)}) for build in (None, "cpu"))
    assert why_relaunch(ENTRY, ENTRY, diff(old, new), configured=True) == "its config changed"
