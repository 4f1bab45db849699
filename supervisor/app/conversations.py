"""Wires what keeps conversations: its folder and its limits from the config."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from engines.registry import adapter_for
from supervisor.clock import Clock
from supervisor.config.schema import Config
from supervisor.config.sections import CacheConfig
from supervisor.events import EventBus
from supervisor.sessions.keeper import Keeper, KeepLimits
from supervisor.sessions.store import Store, StoreLimits


def kept_folder(config: Config) -> Path:
    """The folder of the files; a shared ``cache.dir`` holds one for each state folder, whose daemon alone uses it."""
    if config.cache.dir is None:
        return config.state_dir / "kv"
    mark = hashlib.blake2b(str(config.state_dir).encode(), digest_size=4).hexdigest()
    return config.cache.dir / f"kv-{mark}"


def planned_folder(config: Config) -> Path | None:
    """Where launches are to write their files, whether it is there or not; None: nothing is kept."""
    return kept_folder(config) if config.cache.enabled and config.cache.budget > 0 else None


def conversation_keeper(config: Callable[[], Config], clock: Clock, bus: EventBus) -> Keeper:
    """The keeper; ``config`` is the one in use."""
    known: tuple[CacheConfig, KeepLimits] | None = None

    def limits() -> KeepLimits:
        nonlocal known
        cache = config().cache
        if known is None or known[0] is not cache:  # asked for several times a request
            known = (cache, KeepLimits(cache.enabled, StoreLimits(cache.budget, cache.max_age)))
        return known[1]

    return Keeper(Store(kept_folder(config()), clock, bus), adapter_for, limits, clock, bus)
