"""The owner of what is known of builds: their standing by key, operators' pins, and the file that keeps both."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.to_thread
import orjson
from anyio.abc import TaskStatus
from pydantic import TypeAdapter, ValidationError

from engines.contract import EngineKind
from supervisor.builds.driver import device_kind
from supervisor.builds.events import BuildHealthChanged, BuildPinned, ModelSetAside
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.quarantine import advice, after, aged, wants_canary
from supervisor.builds.standing import (
    Advice,
    BuildKey,
    Happening,
    ModelMark,
    OperatorClear,
    QuarantineLimits,
    Standing,
    Until,
)
from supervisor.clock import Clock
from supervisor.events import EventBus, StateFileUnusable
from supervisor.storage import JsonFile

SCHEMA = 1
FILE_NAME = "quarantine.json"
_KEEP = 64
_LAST_WRITE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Document:
    """The file's shape."""

    standings: dict[str, Standing]
    pins: dict[str, str]


class BuildBook:
    """See the module. All is read and changed in sync methods; ``run`` writes what has changed.

    Args:
        file: None: kept in memory only.
        limits: ``supervision.quarantine`` as it is now.
        driver: the version of the drivers now.
        read_only: the file is another one's: it is read, and never touched.
    """

    def __init__(
        self,
        file: JsonFile | None,
        clock: Clock,
        bus: EventBus,
        limits: Callable[[], QuarantineLimits],
        driver: Callable[[], str],
        *,
        read_only: bool = False,
    ) -> None:
        self._file = file
        self._read_only = read_only
        self._clock = clock
        self._bus = bus
        self._limits = limits
        self._driver = driver
        self._standings: dict[str, Standing] = {}
        self._pins: dict[str, str] = {}
        self._loaded = file is None
        self._lock = anyio.Lock()
        self._dirty = anyio.Event()
        self._write_failed = False

    async def load(self) -> None:
        """Read the file, once; what can't be used is kept beside itself and counts as empty."""
        async with self._lock:
            if self._loaded or self._file is None:
                return
            document, reason = await anyio.to_thread.run_sync(self._file.read)
            if document is not None:
                try:
                    read = TypeAdapter(_Document).validate_python(
                        {"standings": document.get("standings"), "pins": document.get("pins")}
                    )
                except ValidationError as error:
                    reason = f"not what was written: {error.error_count()} mistakes"
                else:
                    self._standings = {**read.standings, **self._standings}
                    self._pins = {**read.pins, **self._pins}
            if reason is not None and not self._read_only:
                self._file.set_aside()
                self._bus.publish(StateFileUnusable(str(self._file.path), reason))
            self._loaded = True

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write each change at once, until cancelled."""
        task_status.started()
        try:
            while True:
                await self._dirty.wait()
                await self.save()
        finally:
            with anyio.move_on_after(_LAST_WRITE_SECONDS, shield=True):
                await self.save()

    async def save(self) -> None:
        """Write the file if anything has changed; a disk that takes nothing is told of once."""
        async with self._lock:
            if not self._dirty.is_set() or self._file is None or self._read_only:
                return
            self._dirty = anyio.Event()
            document = {
                "standings": {key: replace(standing, trial=None) for key, standing in self._standings.items()},
                "pins": dict(self._pins),
            }
            try:
                await anyio.to_thread.run_sync(self._file.write, document)
                self._write_failed = False
            except OSError as error:
                if not self._write_failed:
                    self._bus.publish(StateFileUnusable(str(self._file.path), f"can't be written: {error}"))
                self._write_failed = True

    def standing(self, build: FoundBuild) -> Standing:
        """What is known of a build now; what holds for its bytes holds under every driver."""
        key = self._key_of(build)
        if key is None:
            return Standing()
        now, limits = self._clock.wall(), self._limits()
        own = aged(self._standings.get(str(key), Standing()), now, limits)
        if own.until is Until.BYTES:
            return own
        for other, standing in self._standings.items():
            if standing.until is Until.BYTES and other.startswith(key.of_bytes):
                return standing
        return own

    def advice(self, build: FoundBuild, model: ModelMark) -> Advice:
        """Whether the build may be used for the model now."""
        return advice(self.standing(build), model, self._clock.wall(), self._limits())

    def happened(self, build: FoundBuild, happening: Happening) -> Standing:
        """Note what happened to a build, tell of what changes by it, and give what is known now."""
        key = self._key_of(build)
        if key is None:
            return Standing()
        old = self.standing(build)
        new = after(old, happening, self._limits())
        if new == old:
            return old
        if isinstance(happening, OperatorClear):
            self._forget(key)
        self._standings.pop(str(key), None)
        if new != Standing():
            self._standings[str(key)] = new
        for oldest in list(self._standings)[:-_KEEP]:
            del self._standings[oldest]
        self._dirty.set()
        self._tell(build, old, new)
        return new

    def wants_canary(self, build: FoundBuild) -> str | None:
        """Why the canary should be asked of a build now, in words; None: nothing needs to be found out."""
        return wants_canary(self.standing(build), self._clock.wall(), self._limits())

    def seconds_until_due(self, build: FoundBuild) -> float:
        """Until its cool-down is over; infinite for one that time does not bring back."""
        standing = self.standing(build)
        if standing.until is not Until.COOLDOWN or standing.since is None:
            return math.inf
        return max(0.0, standing.since + self._limits().cooldown - self._clock.wall())

    def pinned(self, engine: EngineKind) -> str | None:
        """The name of the build that an operator prefers for the engine."""
        return self._pins.get(engine.value)

    def pin(self, engine: EngineKind, name: str | None) -> None:
        """Prefer a build for its engine, also while it is set aside; None: none any more."""
        if self._pins.get(engine.value) == name:
            return
        self._pins.pop(engine.value, None)
        if name is not None:
            self._pins[engine.value] = name
        self._dirty.set()
        self._bus.publish(BuildPinned(engine.value, name))

    def _key_of(self, build: FoundBuild) -> BuildKey | None:
        if build.fingerprint is None:
            return None
        return BuildKey(build.fingerprint, _mark(build.env), self._driver(), device_kind(build.facts))

    def _forget(self, key: BuildKey) -> None:
        """Of the same bytes, whatever they were set aside under."""
        for other in [other for other in self._standings if other.startswith(key.of_bytes)]:
            del self._standings[other]

    def _tell(self, build: FoundBuild, old: Standing, new: Standing) -> None:
        if (old.health, old.reason) != (new.health, new.reason):
            event = BuildHealthChanged(build.name, build.engine, build.fingerprint, old.health, new.health, new.reason)
            self._bus.publish(event)
        known = {pair.of for pair in old.pairs if pair.set_aside is not None}
        for pair in new.pairs:
            if pair.set_aside is not None and pair.of not in known:
                why = pair.crashes[-1].why if pair.crashes else ""
                self._bus.publish(ModelSetAside(build.name, build.engine, pair.of.model, len(pair.crashes), why))


def _mark(env: Mapping[str, str]) -> str:
    """A short hash: other variables load other libraries and see other devices. They may hold secrets."""
    whole: Any = sorted(env.items())
    return hashlib.sha256(orjson.dumps(whole)).hexdigest()[:8]
