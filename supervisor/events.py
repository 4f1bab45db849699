"""Typed events: what happened and why, with its arithmetic; logs, metrics and the event stream derive from them.

Publishing is synchronous and never blocks: listeners are called in turn and must be quick; streams read a ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from supervisor.event_bus import Event, EventBus, InternalError, Level, Record

# One import for whoever publishes or listens.
__all__ = ["Event", "EventBus", "InternalError", "Level", "Record"]


@dataclass(frozen=True, slots=True)
class DaemonListening(Event):
    """The socket is open."""

    address: str
    seconds_since_exec: float | None


@dataclass(frozen=True, slots=True)
class DaemonStopping(Event):
    """No new requests; running ones get the drain time."""

    reason: str
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class ConfigReloading(Event):
    """The config is being read again; ``config_reloaded`` or ``config_rejected`` follows."""

    level: ClassVar[Level] = "debug"
    cause: str


@dataclass(frozen=True, slots=True)
class ConfigReloaded(Event):
    """The config was read again; ``changed`` and ``needs_restart`` are paths of fields."""

    cause: str
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigRejected(Event):
    """The config file can't be used; the old config goes on."""

    level: ClassVar[Level] = "error"
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigMissing(Event):
    """The config file was there and is not any more, for longer than a replacement takes; the old config goes on."""

    level: ClassVar[Level] = "warning"
    path: str


@dataclass(frozen=True, slots=True)
class BuildFound(Event):
    """A build was inspected and can be chosen."""

    build: str
    engine: str
    executable: str
    version: str | None
    fingerprint: str
    devices: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class BuildUnusable(Event):
    """A configured or found build can't be used."""

    level: ClassVar[Level] = "warning"
    build: str
    engine: str
    executable: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceLost(Event):
    """A device that was there is gone; ``policy`` is ``host.device_lost``, which decides what plans do."""

    level: ClassVar[Level] = "error"
    build: str
    device: str
    card: str
    pool: str
    why: str
    policy: str


@dataclass(frozen=True, slots=True)
class ModelFound(Event):
    """A model can be asked for."""

    model: str
    files: int
    file_bytes: int
    serves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoModels(Event):
    """There is nothing to serve: no model is configured, and none was found."""

    level: ClassVar[Level] = "warning"
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelBroken(Event):
    """A model is listed as broken and is not served."""

    level: ClassVar[Level] = "warning"
    model: str
    path: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ModelPathSkipped(Event):
    """A folder or file was left out of the search for models."""

    level: ClassVar[Level] = "warning"
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelNameTaken(Event):
    """Two models want one name: ``kept`` has it, ``dropped`` does not; each is a model's id or a path."""

    level: ClassVar[Level] = "warning"
    name_wanted: str
    kept: str
    dropped: str
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceChanged(Event):
    """An instance went from one state to another."""

    instance: str
    model: str
    old: str
    new: str
    reason: str
    generation: int


@dataclass(frozen=True, slots=True)
class PlanMade(Event):
    """A launch was planned; ``choices`` are (choice, value, reason), ``degraded`` what it gave up."""

    model: str
    build: str
    choices: tuple[tuple[str, Any, str], ...]
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanWarning(Event):
    """A plan does what it was told, and what that costs."""

    level: ClassVar[Level] = "warning"
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchStarted(Event):
    """A process was started."""

    instance: str
    model: str
    launch: str
    pid: int
    generation: int


@dataclass(frozen=True, slots=True)
class LoadProgress(Event):
    """A load goes on; ``share`` of the model's bytes that are in memory, 0 to 1, None where it can't be told."""

    level: ClassVar[Level] = "debug"
    instance: str
    model: str
    launch: str
    seconds: float
    share: float | None


@dataclass(frozen=True, slots=True)
class LaunchReady(Event):
    """A launch answers."""

    instance: str
    model: str
    launch: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryObserved(Event):
    """An engine that has become ready was looked at; bytes by pool and column, None where not known."""

    instance: str
    model: str
    memory: dict[str, dict[str, int | None]]


@dataclass(frozen=True, slots=True)
class LaunchExited(Event):
    """A process ended; ``planned`` when we had asked for it, ``blamed_on_request`` when a request had crashed it.

    Bytes are what it held when it was last seen.
    """

    instance: str
    model: str
    launch: str
    phase: str
    exit_code: int | None
    signal: int | None
    kind: str
    blames: str
    why: str
    planned: bool
    log: tuple[str, ...]
    blamed_on_request: bool = False
    anonymous_bytes: int | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RequestQueued(Event):
    """A request waits for a slot or a load."""

    level: ClassVar[Level] = "debug"
    request_id: str
    model: str
    caller: str
    position: int


@dataclass(frozen=True, slots=True)
class RequestLeased(Event):
    """A request got its slot."""

    level: ClassVar[Level] = "debug"
    request_id: str
    model: str
    instance: str
    slot: int
    queue_seconds: float
    load_seconds: float


@dataclass(frozen=True, slots=True)
class RequestDenied(Event):
    """A request was refused, with the arithmetic."""

    level: ClassVar[Level] = "warning"
    request_id: str
    model: str
    caller: str
    code: str
    why: str
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class RequestFinished(Event):
    """An HTTP request ended. ``outcome``: ``ok``, ``error``, ``client_left`` or ``upstream_died``.

    Of what an engine wrote, where it wrote: tokens as it counted them, seconds from the request's arrival to the first,
    and the mean between two.
    """

    request_id: str
    method: str
    path: str
    model: str | None
    caller: str
    status: int
    outcome: str
    seconds: float
    first_byte_seconds: float | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    first_token_seconds: float | None = None
    token_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RequestUnreadable(Event):
    """What came was no HTTP request, or none that can be read; ``caller`` is an address."""

    request_id: str
    caller: str
    reason: str


@dataclass(frozen=True, slots=True)
class SlotStuck(Event):
    """A slot was not seen idle in time after its client left."""

    level: ClassVar[Level] = "warning"
    instance: str
    model: str
    slot: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class StateFileUnusable(Event):
    """A state file was set aside; the daemon goes on without it."""

    level: ClassVar[Level] = "warning"
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigWatchLimited(Event):
    """The config's folder gives no notices: a change of the file is seen at the next look at it."""

    path: str
    reason: str
    poll_seconds: float


@dataclass(frozen=True, slots=True)
class CertificateLoaded(Event):
    """The certificate's files had changed: new connections are shown the new one."""

    certificate: str


@dataclass(frozen=True, slots=True)
class CertificateUnusable(Event):
    """The certificate's files have changed and can't be used; the old one goes on."""

    level: ClassVar[Level] = "error"
    certificate: str
    reason: str
