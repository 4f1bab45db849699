"""What the gateway needs of others, and no more; ``app`` hands in the real things."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio.lowlevel

from engines.contract import Capability, Endpoint, EngineKind, LaunchPlan, LaunchSettings, ModelMetadata
from supervisor.broker.lease import LeaseRequest
from supervisor.gateway.doorkeeper import Doorkeeper
from supervisor.gateway.request_limits import RequestLimits
from supervisor.gateway.token_meter import TokenMeter
from supervisor.instances.kept_connections import KeptConnections
from supervisor.models.catalog import ModelEntry

if TYPE_CHECKING:
    from supervisor.gateway.pictures.asking import PictureService


class Launch(Protocol):
    """An engine process that can be talked to.

    Attributes:
        endpoint: where it listens.
        headers: the engine's key.
        calls: the gate that every call to it passes.
        kept: connections that another request may use.
    """

    @property
    def endpoint(self) -> Endpoint: ...  # noqa: D102  said in the class

    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102  said in the class

    @property
    def calls(self) -> AbstractAsyncContextManager[Any]: ...  # noqa: D102  said in the class

    @property
    def kept(self) -> KeptConnections: ...  # noqa: D102  said in the class

    @property
    def instance_id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def plan(self) -> LaunchPlan: ...  # noqa: D102  said in the class


class Lease(Protocol):
    """The right to one slot of one ready instance."""

    @property
    def launch(self) -> Launch: ...  # noqa: D102  said in the class

    @property
    def queue_seconds(self) -> float: ...  # noqa: D102  said in the class

    @property
    def load_owner(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def load_seconds(self) -> float: ...  # noqa: D102  said in the class

    async def broke(self, seconds: float) -> bool:
        """Whether the engine is gone, or is noticed to be within ``seconds``."""
        ...

    def progress(self, at: float) -> None:
        """The engine was heard of, at this monotonic second."""
        ...

    def overdue(self, seconds: float) -> None:
        """The engine was not heard of for all that the request may wait: have it looked at."""
        ...

    def done(self) -> None:
        """The engine has said all that it had to say."""
        ...

    def abandon(self) -> None:
        """The engine may still be at work on this request when the lease ends."""
        ...


class Leases(Protocol):
    """The broker."""

    def lease(self, request: LeaseRequest) -> AbstractAsyncContextManager[Lease]:
        """Wait for a slot, starting the engine if it must be, and hold it.

        Raises:
            AdmissionError, InstanceError, PlanError: refused, with the reason.
        """
        ...


class Turn(Protocol):
    """The right of a body that was on a crashed engine to be asked again, one such body at a time."""

    async def take(self) -> None:
        """Wait for it, within a bound.

        Raises:
            AdmissionError: ``queue_timeout``.
        """
        ...

    def give_back(self) -> None:
        """The next one may begin."""
        ...


class Crashes(Protocol):
    """Which request bodies were on an engine when it crashed."""

    def refuse_guilty(self, model: str, body: bytes) -> None:
        """Let a body pass, unless it was there at two crashes.

        Raises:
            UpstreamError: ``request_crashes_engine``.
        """
        ...

    def turn_of(self, model: str, body: bytes) -> Turn | None:
        """The turn that a suspected body must take; None: it need not."""
        ...

    def answered(self, model: str, body: bytes) -> None:
        """An engine answered this body."""
        ...


class Router(Protocol):
    """Finds what serves a model."""

    async def ready(self) -> None:
        """Wait, within a bound, until the models are known."""
        ...

    def find(self, name: str, visible: Callable[[ModelEntry], bool] | None = None) -> ModelEntry:
        """The model that ``name`` stands for, broken or not; one that isn't ``visible`` isn't there.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``.
        """
        ...

    def resolve(
        self, name: str, capability: Capability, visible: Callable[[ModelEntry], bool] | None = None
    ) -> ModelEntry:
        """The model that ``name`` means; one that isn't ``visible`` isn't there.

        Raises:
            ModelError: ``models_unknown``, ``model_not_found``, ``model_broken``, ``capability_not_served``.
        """
        ...


class Generation(Protocol):
    """The part of an engine's adapter that a request needs."""

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:
        """The client's body as it is sent to the engine: a stream, that reports progress unless told otherwise."""
        ...

    def prepare_whole(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The same for a short answer at once; None: the engine is asked for a stream nevertheless."""
        ...

    def name_stop(self, sent: dict[str, Any]) -> dict[str, Any]:
        """The same, so that the answer also says which stop string ended it, where the engine can."""
        ...

    def stop_string(self, data: bytes) -> str | None:
        """The stop string that ended the answer, where a frame's data says so.

        Raises:
            ValueError: the data is no JSON.
        """
        ...

    def answer_prefix(self, body: dict[str, Any]) -> str:
        """Text that the engine's whole answer begins with, and its stream does not."""
        ...

    def can_stream(self, body: dict[str, Any]) -> bool:
        """Whether the engine can answer this body as a stream."""
        ...

    def takes_media(self, settings: LaunchSettings, metadata: ModelMetadata | None) -> bool:
        """Whether an engine that is launched so, with these files, can read pictures and sounds."""
        ...

    def is_progress(self, data: bytes) -> bool:
        """Whether the data of a frame is a progress report that carries no content."""
        ...

    def count_tokens(self, body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """What to ask the engine, path and body, and what its answers mean: the tokens of a chat's prompt."""
        ...


class ModelControl(Protocol):
    """Loads and unloads by hand; both answer with what ``/admin/v1/status`` would say of the instance."""

    async def load(self, name: str) -> dict[str, Any]:
        """Make the model ready; waits for it."""
        ...

    async def unload(self, name: str) -> dict[str, Any]:
        """Stop the model's instance; waits for it."""
        ...

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Never evict the model, or again."""
        ...


class BuildControl(Protocol):
    """An operator's word on builds; each answers with rows as in ``/admin/v1/status``."""

    def rows(self) -> list[dict[str, Any]]:
        """All builds."""
        ...

    def inspect(self, name: str) -> dict[str, Any]:
        """One of them."""
        ...

    def clear(self, name: str) -> dict[str, Any]:
        """Forget what is held against it."""
        ...

    def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Prefer it for its engine, or no longer."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A row of ``/v1/models``.

    Attributes:
        created: seconds since 1970; 0 is not allowed to stand for unknown.
        context_length: tokens that one request may use.
        state: the instance's state, such as ``ready``; ``stopped`` when it was never started.
        broken: why it can't be served; None when it can.
        file_bytes: of all its files; this and what follows as the files say.
        unlisted: served by name, and in no list.
        pictures: what it draws and how; None: it draws nothing.
    """

    id: str
    created: int | None
    capabilities: tuple[str, ...]
    state: str
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    broken: str | None = None
    file_bytes: int | None = None
    format: str | None = None
    architecture: str | None = None
    quantization: str | None = None
    parameter_count: int | None = None
    unlisted: bool = False
    pictures: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that the gateway is built on.

    Attributes:
        crashes: who was on an engine that crashed.
        generation: the adapter of an engine.
        models: rows of ``/v1/models``, in order.
        status: the document of ``/admin/v1/status``.
        reload: reads the config again and applies it; the answer lists what changed.
        plan: the plan that a model would get now, as a document.
        explain: what became of a request, by its id; None: not known.
        readiness: whether requests are taken, and why not.
        metrics: the body and the content type of ``/metrics``.
        events: frames of the event stream after an id; None: only new ones.
        door: who asks, and whether they may.
        pictures: makes jobs of requests for pictures; None: there are no such routes.
        news: as ``events``, only what the status page tells, each with its sentence.
        history: the last hour in figures.
        look: reads anew what the machine leaves, where nobody else does.
        meter: counts what engines write.
    """

    router: Router
    leases: Leases
    crashes: Crashes
    generation: Callable[[EngineKind], Generation]
    models: Callable[[], Sequence[ModelCard]]
    control: ModelControl
    builds: BuildControl
    status: Callable[[], dict[str, Any]]
    reload: Callable[[], Awaitable[dict[str, Any]]]
    plan: Callable[[str], Awaitable[dict[str, Any]]]
    explain: Callable[[str], dict[str, Any] | None]
    readiness: Callable[[], tuple[bool, str]]
    metrics: Callable[[], Awaitable[tuple[bytes, str]]]
    events: Callable[[int | None], AsyncGenerator[bytes, None]]
    door: Doorkeeper
    news: Callable[[int | None], AsyncGenerator[bytes, None]]
    history: Callable[[], dict[str, Any]]
    meter: TokenMeter
    pictures: PictureService | None = None
    look: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits, in bytes and seconds.

    Attributes:
        body_limit: longest request body, after decompression.
        watchdogs: how long an engine may be silent within a request; asked for at each one.
        early_header: a streamed request that waits longer hears that it waits.
        waiting_interval: from then on so often.
        responses: the database of responses; None: in memory.
        logs: the folder of engines' logs; None: none are kept.
    """

    body_limit: int = 32 * 2**20
    watchdogs: Callable[[], RequestLimits] = RequestLimits
    early_header: float = 10.0
    waiting_interval: float = 10.0
    responses: Path | None = None
    logs: Path | None = None
