"""Reload of the config: read, validate, compare, apply; a bad file keeps the old config and says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread

from supervisor.config.diff import ConfigDiff, after_reload, diff
from supervisor.config.load import LoadedConfig
from supervisor.config.schema import Config
from supervisor.errors import ConfigError
from supervisor.events import ConfigRejected, ConfigReloaded, ConfigReloading, EventBus
from supervisor.models.catalog import ModelEntry


def why_relaunch(old: ModelEntry, new: ModelEntry, found: ConfigDiff, *, configured: bool) -> str | None:
    """Why a running engine of this model must be launched anew; None: it runs with what still holds.

    Args:
        old: the catalog's entry before.
        new: the one after; its files may have changed, whatever the config says.
        found: what the config changed.
        configured: the model has a section in the new config.
    """
    if found.touches_launch(new.id, new.engine, configured=configured):
        return "its config changed"
    if (old.files, old.metadata) != (new.files, new.metadata):
        return "its files changed"
    if (old.serves, old.settings, old.defaults, old.build) != (new.serves, new.settings, new.defaults, new.build):
        return "its config changed"
    return None


class Reloader:
    """Owns the config in use; one reload at a time.

    Attributes:
        config: what holds now; fields that only a restart changes are as they were at the start.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        read: Callable[[], LoadedConfig],
        apply: Callable[[Config, ConfigDiff], Awaitable[Mapping[str, Any]]],
        bus: EventBus,
    ) -> None:
        self.config = loaded.config
        self._from_env = loaded.from_env
        self._read = read
        self._apply = apply
        self._bus = bus
        self._lock = anyio.Lock()

    def longest_wait(self) -> float:
        """Seconds that a request may wait, by the config in use."""
        return self.config.broker.queue.max_wait

    async def reload(self, cause: str) -> dict[str, Any]:
        """Read the file again and apply what changed; the answer lists it, also when nothing did.

        Raises:
            ConfigError: the file, or one that it names, can't be used; the old config goes on.
        """
        async with self._lock:
            self._bus.publish(ConfigReloading(cause))
            try:
                return await self._reload(cause)
            except ConfigError as error:
                self._bus.publish(ConfigRejected(cause, error.message))
                raise

    async def _reload(self, cause: str) -> dict[str, Any]:
        loaded = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        hidden = self._from_env | loaded.from_env
        found = await anyio.to_thread.run_sync(diff, self.config, loaded.config, hidden)
        held = after_reload(self.config, loaded.config)
        # Also without a change in the file: model files may have come or gone.
        seen = await self._apply(held, found)
        self.config, self._from_env = held, loaded.from_env
        changed = tuple(change.path for change in found.changes)
        self._bus.publish(ConfigReloaded(cause, changed, found.needs_restart))
        document = found.document()
        return {**document, "models": {**document["models"], **seen}}

    async def reload_quietly(self, cause: str) -> None:
        """As ``reload``, for causes that nobody waits for: a bad file is told by its event alone."""
        try:
            await self.reload(cause)
        except ConfigError:
            return
