"""A gateway on a real socket, with everything behind it written by hand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import aiohttp
import anyio
from aiohttp import web

from engines.contract import Capability, Endpoint, EngineKind, LaunchPlan, LaunchSettings
from supervisor.broker.crash_book import CrashBook
from supervisor.broker.lease import Lease, LeaseRequest
from supervisor.clock import SystemClock
from supervisor.errors import ModelError, SupervisorError
from supervisor.events import Event, EventBus, Record, RequestFinished
from supervisor.gateway.address import open_socket
from supervisor.gateway.doorkeeper import Access, Doorkeeper
from supervisor.gateway.failed_attempts import FailedAttempts
from supervisor.gateway.gate import Gate
from supervisor.gateway.ports import GatewaySettings, ModelCard, Ports
from supervisor.gateway.server import Listener, build_app
from supervisor.gateway.site import Site
from supervisor.gateway.token_meter import TokenMeter
from supervisor.instances.kept_connections import KeptConnections
from supervisor.models.catalog import ModelEntry
from supervisor.telemetry.journal import Journal
from tests.fakes.generation import FakeGeneration
from tests.fakes.instances import launch_plan
from tests.fakes.played_engine import PlayedEngine
from tests.support.sockets import short_socket_folder

E = TypeVar("E", bound=Event)
PATIENCE_SECONDS = 10.0
KEY = "engine-key"


def model_entry(name: str = "demo") -> ModelEntry:
    """A model that exists only by name."""
    return ModelEntry(
        id=name,
        engine=EngineKind.LLAMA_CPP,
        files=(),
        aliases=("nice-name",),
        serves=frozenset({Capability.CHAT, Capability.EMBEDDINGS}),
        settings=LaunchSettings(),
        defaults=LaunchSettings(),
        metadata=None,
        broken=None,
        build=None,
        keep_alive=None,
        pinned=False,
        preload=False,
        allow_paging=False,
    )


@dataclass
class FakeLaunch:
    """Leads to the played engine."""

    endpoint: Endpoint
    plan: LaunchPlan = field(default_factory=launch_plan)
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})
    instance_id: str = "demo-1"
    calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(3))
    kept: KeptConnections = field(default_factory=KeptConnections)


@dataclass
class FakeLease:
    """Remembers how it ended."""

    launch: FakeLaunch
    request: LeaseRequest
    queue_seconds: float = 0.012
    load_seconds: float = 0.5
    load_owner: bool = True
    abandoned: bool = False
    released: bool = False
    crashed: Callable[[], object] | None = None
    engine_done: bool = False
    heard: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    async def broke(self, seconds: float) -> bool:
        """As the test says; a launch that has ended is told to the crash book first."""
        if self.crashed is not None:
            self.crashed()
        return self.crashed is not None

    def progress(self, at: float) -> None:
        """The engine was heard of."""
        self.heard.append(at)

    def overdue(self, seconds: float) -> None:
        """The engine was silent for too long."""
        self.looks.append(seconds)

    def done(self) -> None:
        """The engine is done."""

    def abandon(self) -> None:
        """Left too early."""
        self.abandoned = True


class FakeBroker:
    """Grants at once, or when ``hold`` is set, or refuses with ``error``.

    Attributes:
        leases: every lease granted.
        waiting: requests that wait now.
        asked: set when a request waits.
        ended: set when a lease or a wait ended.
        breaks: leases turn out to be of a launch that has ended.
    """

    def __init__(self, launch: FakeLaunch) -> None:
        self.launch = launch
        self.hold: anyio.Event | None = None
        self.breaks = False
        self.crashes = CrashBook(self.leases_on, lambda: PATIENCE_SECONDS, SystemClock(), EventBus(SystemClock()))
        self.error: Exception | None = None
        self.leases: list[FakeLease] = []
        self.waiting = 0
        self.asked = anyio.Event()
        self.ended = anyio.Event()

    def leases_on(self, model: str) -> list[Lease]:
        """Those that are held now, as the crash book sees them."""
        return [cast("Lease", lease) for lease in self.leases if not lease.released]

    @asynccontextmanager
    async def lease(self, request: LeaseRequest) -> AsyncIterator[FakeLease]:
        """Wait as told, then grant or refuse."""
        self.waiting += 1
        self.asked.set()
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.waiting -= 1
            self.ended.set()
        if self.error is not None:
            raise self.error
        self.ended = anyio.Event()
        launch = f"launch-{len(self.leases) + 1}"
        crashed = partial(self.crashes.crashed, request.model.id, launch) if self.breaks else None
        lease = FakeLease(self.launch, request, crashed=crashed)
        self.leases.append(lease)
        try:
            yield lease
        finally:
            lease.released = True
            self.ended.set()


class FakeRouter:
    """Knows ``demo`` and its alias."""

    def __init__(self) -> None:
        self.entry = model_entry()
        self.asked: list[tuple[str, Capability]] = []

    async def ready(self) -> None:
        """At once."""

    def resolve(
        self, name: str, capability: Capability, visible: Callable[[ModelEntry], bool] | None = None
    ) -> ModelEntry:
        """``demo`` or an error."""
        self.asked.append((name, capability))
        return self.find(name, visible)

    def find(self, name: str, visible: Callable[[ModelEntry], bool] | None = None) -> ModelEntry:
        """``demo`` or an error."""
        if name not in {self.entry.id, *self.entry.aliases} or (visible is not None and not visible(self.entry)):
            raise ModelError("model_not_found", f"there is no model {name!r}. Did you mean 'demo'?", param="model")
        return self.entry


class FakeControl:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.error: SupervisorError | None = None

    async def load(self, name: str) -> dict[str, Any]:
        """Remember."""
        return self._do("load", name, "ready")

    async def unload(self, name: str) -> dict[str, Any]:
        """Remember."""
        return self._do("unload", name, "stopped")

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Remember."""
        return self._do("pin" if on else "unpin", name, "stopped")

    def _do(self, what: str, name: str, state: str) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.told.append((what, name))
        return {"model": name, "state": state}


class FakeBuildControl:
    """One build, and what an operator did to it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def rows(self) -> list[dict[str, Any]]:
        """The one."""
        return [{"name": "fake"}]

    def inspect(self, name: str) -> dict[str, Any]:
        """Remember."""
        return self._do("inspect", name)

    def clear(self, name: str) -> dict[str, Any]:
        """Remember."""
        return self._do("clear", name)

    def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Remember."""
        return self._do("pin" if on else "unpin", name)

    def _do(self, what: str, name: str) -> dict[str, Any]:
        self.told.append((what, name))
        return {"name": name}


class FakeEvents:
    """An event stream that says what it was asked, then waits."""

    def __init__(self) -> None:
        self.closed = anyio.Event()

    async def frames(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """One frame, then silence."""
        try:
            yield f"id: 7\nevent: asked\ndata: {after}\n\n".encode()
            await anyio.sleep_forever()
        finally:
            self.closed.set()


@dataclass
class RunningGateway:
    """What a test holds in its hand."""

    url: str
    client: aiohttp.ClientSession
    broker: FakeBroker
    engine: PlayedEngine
    router: FakeRouter
    control: FakeControl
    events: FakeEvents
    gate: Gate
    bus: EventBus
    cards: list[ModelCard]
    readiness: list[tuple[bool, str]]
    door: Doorkeeper
    app: web.Application
    delays: list[float] = field(default_factory=list)
    hold_delays: anyio.Event | None = None

    async def delay(self, seconds: float) -> None:
        """What stands for the sleep of a wrong token's answer: noted, and only waited for if it is held."""
        self.delays.append(seconds)
        if self.hold_delays is not None:
            await self.hold_delays.wait()

    async def heard(self, kind: type[E]) -> E:
        """The next event of that kind, or the first that is kept."""
        arrived = anyio.Event()

        def look(record: Record) -> None:
            if isinstance(record.event, kind):
                arrived.set()

        stop = self.bus.listen(look)
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                while True:
                    for record in self.bus.since(0):
                        if isinstance(record.event, kind):
                            return record.event
                    await arrived.wait()
        finally:
            stop()

    async def finished(self) -> RequestFinished:
        """How the request ended."""
        return await self.heard(RequestFinished)


@asynccontextmanager
async def running_gateway(
    engine: PlayedEngine,
    *,
    adapter: Any = None,
    patience: float = 30,
    access: Access | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[RunningGateway]:
    """Everything up: engine, gateway, and a client that reads nothing into what it gets.

    ``access``: who may what; without it everybody may everything. With ``tls`` the client must be told whom to trust.
    """
    clock = SystemClock()

    async def delay(seconds: float) -> None:
        await running.delay(seconds)

    door = Doorkeeper(access or Access(Site()), FailedAttempts(clock), delay)
    bus = EventBus(clock)
    gate = Gate()
    router, control, events = FakeRouter(), FakeControl(), FakeEvents()
    cards: list[ModelCard] = []
    readiness = [(True, "ok")]
    generation = adapter or FakeGeneration()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(short_socket_folder())
        await stack.enter_async_context(engine.listening(folder / "e.sock"))
        broker = FakeBroker(FakeLaunch(Endpoint(folder / "e.sock")))
        ports = Ports(
            router=router,
            leases=broker,
            crashes=broker.crashes,
            generation=lambda _kind: generation,
            models=lambda: cards,
            control=control,
            builds=FakeBuildControl(),
            status=lambda: {"version": "0", "path": Path("/x")},
            reload=_reload,
            plan=_plan,
            explain=Journal(bus, clock).explain,
            readiness=lambda: readiness[0],
            metrics=_metrics,
            events=events.frames,
            door=door,
            news=events.frames,
            history=lambda: {"at": []},
            meter=TokenMeter(),
        )
        app = build_app(ports, replace(GatewaySettings(), **settings), gate, clock, bus)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        opened = open_socket("127.0.0.1", 0)
        stack.callback(opened.close)
        host, port = await tasks.start(Listener(app, bus, opened, tls).run)
        stack.callback(tasks.cancel_scope.cancel)
        url = f"http{'s' if tls else ''}://{host}:{port}"
        client = await stack.enter_async_context(aiohttp.ClientSession(url))
        running = RunningGateway(
            url, client, broker, engine, router, control, events, gate, bus, cards, readiness, door, app
        )
        with anyio.fail_after(patience):
            yield running


async def _reload() -> dict[str, Any]:
    return {"changed": False}


async def _plan(model: str) -> dict[str, Any]:
    return {"model": model}


async def _metrics() -> tuple[bytes, str]:
    return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"
