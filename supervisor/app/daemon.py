"""The root task group; the order of start and of stop.

Start: the command line has locked the state folder and opened the socket; then what an earlier daemon left is ended,
and builds and models are looked for. Stop: take nothing new, let running requests drain, stop the engines, all within
``shutdown.total``; a second signal ends the waiting.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

import supervisor
from engines.contract import EngineAdapter, LaunchPlan
from engines.registry import ADAPTERS, adapter_for
from supervisor.app.canaries import canary_watch
from supervisor.app.conversations import conversation_keeper
from supervisor.app.cpus import cpu_watch
from supervisor.app.drawing import Engines, PictureRoom
from supervisor.app.knowledge import Knowledge
from supervisor.app.options import DaemonOptions
from supervisor.app.page import Vitals
from supervisor.app.pressure import pressure_watch
from supervisor.app.surroundings import cancel_on_signal, certificate_of, make_data_dir, names_in
from supervisor.broker.admission import Policy
from supervisor.broker.broker import Broker
from supervisor.broker.crash_book import CrashBook
from supervisor.broker.memory_watch import MemoryWatch
from supervisor.broker.rooms import OurEngines
from supervisor.broker.tickets import QueueLimits
from supervisor.clock import SystemClock
from supervisor.config.diff import ConfigDiff
from supervisor.config.load import LoadedConfig
from supervisor.config.schema import Config
from supervisor.config.watch import ConfigWatch, load_watchfiles
from supervisor.errors import SupervisorError
from supervisor.events import DaemonListening, DaemonStopping, EventBus, InternalError
from supervisor.gateway.build_control import BuildControl
from supervisor.gateway.doorkeeper import Doorkeeper, read_access
from supervisor.gateway.engine_metrics import EngineMetrics
from supervisor.gateway.failed_attempts import FailedAttempts
from supervisor.gateway.gate import Gate
from supervisor.gateway.model_control import ModelControl
from supervisor.gateway.plan_answer import PlanAnswer
from supervisor.gateway.ports import GatewaySettings, Ports
from supervisor.gateway.request_limits import CurrentLimits
from supervisor.gateway.server import Listener, build_app
from supervisor.gateway.status_document import StatusDocument, model_cards, panel_document
from supervisor.instances.fleet import Fleet
from supervisor.instances.instance import Instance
from supervisor.instances.launch import sweep_sockets
from supervisor.instances.tools import InstanceLimits, InstanceTools
from supervisor.models.catalog import ModelEntry
from supervisor.processes.environment import child_environment
from supervisor.processes.launch_records import LaunchRecords
from supervisor.processes.log_folder import LogFolder
from supervisor.processes.log_lines import FOLDER_NAME
from supervisor.processes.orphans import OrphanSweep
from supervisor.reloading import Reloader, why_relaunch
from supervisor.sessions.contained import ContainedKeeper
from supervisor.storage import make_private_folder
from supervisor.telemetry.event_stream import EventStream
from supervisor.telemetry.journal import Journal
from supervisor.telemetry.logging import log_events
from supervisor.telemetry.metrics import Metrics
from supervisor.telemetry.sentences import news
from supervisor.telemetry.service_manager import ServiceManager


async def run_daemon(loaded: LoadedConfig, *, options: DaemonOptions) -> int:
    """Run until told to stop; the exit code.

    Raises:
        ConfigError: the runtime folder, a token file or a certificate can't be used.
    """
    make_private_folder(loaded.config.runtime_dir)
    sweep_sockets(loaded.config.runtime_dir)
    make_data_dir(loaded.config)
    await Daemon(loaded, options).run()
    return 0


class Daemon:
    """Every object of a running daemon, wired."""

    def __init__(self, loaded: LoadedConfig, options: DaemonOptions) -> None:
        config = loaded.config
        self._options = options
        self._clock = SystemClock()
        self._bus = EventBus(self._clock)
        log_events(self._bus, options.logger, options.lines)
        self._manager = ServiceManager(options.env, self._bus)
        self._logs = LogFolder(config.state_dir / FOLDER_NAME, self._clock, self._bus, options.redactor.clean)
        self._records = LaunchRecords(config.state_dir, self._bus)
        self._orphans = OrphanSweep(self._records, config.supervision.stop.grace, self._bus)
        self._address: str | None = None
        self._known = False
        # What the file holds now is what was loaded: a change from here on is a change.
        self._watch = ConfigWatch(loaded.path, self._bus, load_notices=load_watchfiles) if loaded.path else None
        self._reloader = Reloader(loaded, options.read or (lambda: loaded), self._apply, self._bus)
        self._gate = Gate()
        self._door = Doorkeeper(read_access(config, options.redactor.add), FailedAttempts(self._clock))
        self._certificate = certificate_of(config, self._bus)
        self._keeper = conversation_keeper(lambda: self._reloader.config, self._clock, self._bus)
        self._knowledge = Knowledge(
            config,
            options.env,
            self._bus,
            config.state_dir,
            ours=OurEngines(self._engine_pids, self._held, self._orphans.done.wait),
            mark=self._records.run_mark,
            running=lambda model_id: self._fleet.plans_beside(model_id),  # noqa: PLW0108  there is no fleet yet
            slot_files=self._keeper.folder,
        )
        self._router = self._knowledge.router
        self._shelf = self._knowledge.shelf
        self._launching = self._knowledge.launching
        self._fleet = Fleet(self._instance_tools, InstanceLimits.of(config.supervision))
        limits, policy = QueueLimits.of(config.broker.queue), Policy.of(config.broker.eviction)
        self._broker = Broker(self._fleet, self._launching, limits, policy, self._clock, self._bus)
        self._crashes = CrashBook(self._broker.leases_on, self._reloader.longest_wait, self._clock, self._bus)
        self._fleet.observe(self._keeper.instance_changed)
        self._fleet.observe(self._knowledge.care.instance_changed)
        self._fleet.observe(self._broker.instance_changed)
        self._memory = self._memory_watch()
        self._fleet.observe(self._memory.instance_changed)
        self._canaries = canary_watch(
            self._knowledge, self._fleet, self._broker, self._instance_tools, config.runtime_dir, self._bus
        )
        self._builds = BuildControl(self._shelf, self._knowledge.book, self._clock, self._builds_changed)
        self._vitals = Vitals(self._knowledge, self._fleet, self._broker, self._clock, self._bus)
        self._status = StatusDocument(
            supervisor.__version__,
            self._clock,
            self._fleet,
            self._broker,
            self._builds.rows,
            lambda: self._address,
            self._vitals.document,
        )
        self._control = ModelControl(self._router, self._fleet, self._status, self._broker)
        self._pictures = self._picture_room()
        tls = self._certificate.context if self._certificate is not None else None
        self._listener = Listener(self._build_gateway(), self._bus, options.address.socket, tls)

    def _picture_room(self) -> PictureRoom:
        engines = Engines(self._fleet, self._broker, self._launching)
        limits, shared = lambda: self._reloader.config.pictures, (self._gate, self._clock, self._bus)
        return PictureRoom(self._router, engines, self._broker, self._crashes, limits, *shared)

    def _memory_watch(self) -> MemoryWatch:
        knowledge = self._knowledge
        return MemoryWatch(
            self._fleet.instances, knowledge.nvidia.read, knowledge.learned, knowledge.seen, self._broker, self._bus
        )

    async def run(self) -> None:
        """Serve until a signal comes, then stop in order."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            # The log folder outlives the engines, so that their last words are written.
            async with anyio.create_task_group() as outer:
                await outer.start(self._logs.run)
                await outer.start(self._manager.run)
                try:
                    await self._serve(signals)
                finally:
                    self._records.end_run()
                    outer.cancel_scope.cancel()

    async def _serve(self, signals: AsyncIterator[signal.Signals]) -> None:
        async with anyio.create_task_group() as tasks:
            try:
                await self._start(tasks)
                async for number in signals:
                    if number is not signal.SIGHUP:
                        break
                    tasks.start_soon(self._contained, self._reload_by_signal)
                await self._stop(signal.Signals(number).name, signals)
            finally:
                tasks.cancel_scope.cancel()

    async def _start(self, tasks: TaskGroup) -> None:
        await tasks.start(self._fleet.run)
        await tasks.start(self._keeper.run)
        await tasks.start(self._broker.run)
        await tasks.start(self._pictures.jobs.run)
        await tasks.start(self._memory.run)
        await tasks.start(self._knowledge.book.run)
        await tasks.start(self._knowledge.care.run)
        await tasks.start(self._canaries.run)
        await tasks.start(cpu_watch(self._knowledge, self._fleet, self._broker, self._bus).run)
        await tasks.start(pressure_watch(self._knowledge, self._fleet, self._broker, self._clock, self._bus).run)
        await tasks.start(self._vitals.pulse.run)
        host, port = await tasks.start(self._listener.run)
        scheme = "http"
        if self._certificate is not None:
            await tasks.start(self._certificate.run)
            scheme = "https"
        self._address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._bus.publish(DaemonListening(self._address, self._options.address.seconds_since_exec))
        tasks.start_soon(self._look_around)
        if self._watch is not None:
            await tasks.start(self._watch.run, partial(self._reloader.reload_quietly, "the file changed"))

    async def _look_around(self) -> None:
        """Leftovers, builds and models, after listening: nobody waits for them but who asks for a model."""
        await self._contained(self._orphans.run)
        await self._contained(self._keeper.load)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._contained, self._shelf.look_at_all)
            tasks.start_soon(self._contained, self._knowledge.look_for_models)
            tasks.start_soon(self._contained, self._knowledge.book.load)
        self._known = True
        self._canaries.look()
        await self._contained(self._show_panel)
        await self._contained(self._preload)

    async def _contained(self, work: Callable[[], Awaitable[None]]) -> None:
        """A fault of our own in work that nobody waits for is told, and ends nothing else."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001  see above
            self._bus.publish(InternalError(work.__name__, repr(error), traceback.format_exc()))

    async def _show_panel(self) -> None:
        if self._options.on_listening is not None:
            self._options.on_listening(await self._panel())

    async def _preload(self) -> None:
        """Start pinned and preloaded models, in the config's order, one after the other."""
        catalog = self._router.catalog
        for entry in catalog.usable if catalog else ():
            if entry.pinned or entry.preload:
                with contextlib.suppress(SupervisorError):  # told by its events
                    await self._control.load(entry.id)

    async def _reload_by_signal(self) -> None:
        await self._reloader.reload_quietly("SIGHUP")

    async def _apply(self, config: Config, found: ConfigDiff) -> dict[str, list[str]]:
        """Use a new config: models anew, limits at once, and only those engines stop that run with something else.

        The answer names models that can be asked for now, or no longer, whether the config or the folders changed.

        Raises:
            ConfigError: ``config_invalid``: a token file can't be used; nothing was applied.
        """
        tokens: list[str] = []
        access = await anyio.to_thread.run_sync(read_access, config, tokens.append)
        for token in tokens:  # here: the redactor belongs to the loop
            self._options.redactor.add(token)
        self._door.use(access)
        self._knowledge.use(config)
        self._fleet.use(InstanceLimits.of(config.supervision))
        self._broker.use(QueueLimits.of(config.broker.queue), Policy.of(config.broker.eviction))
        before = names_in(self._router.catalog)
        await self._shelf.look_at_all()
        await self._knowledge.look_for_models()
        self._canaries.look()
        catalog = self._router.catalog
        for instance in self._fleet.instances():
            entry = catalog.resolve(instance.model_id) if catalog else None
            if entry is None or entry.id != instance.model_id:
                self._broker.drop(instance.model_id)
            else:
                configured = entry.id in config.models
                self._broker.adopt(entry, why_relaunch(instance.entry, entry, found, configured=configured))
        after = names_in(catalog)
        return {"listed": sorted(after - before), "gone": sorted(before - after)}

    async def _stop(self, reason: str, signals: AsyncIterator[signal.Signals]) -> None:
        """Drain, then stop the engines; ``shutdown.total`` or a second signal cuts it short."""
        limits = self._reloader.config.shutdown
        self._bus.publish(DaemonStopping(reason, limits.drain))
        with anyio.move_on_after(limits.total) as total:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_on_signal, signals, total)
                self._broker.stop_admitting()
                await self._gate.drain(min(limits.drain, limits.total))
                self._fleet.drain()
                await self._fleet.stop_all(reason)
                await self._keeper.store.secured()
                tasks.cancel_scope.cancel()
        if total.cancelled_caught:
            with anyio.CancelScope(shield=True):
                await self._gate.drain(0.0)  # whoever is cut hears why

    def _build_gateway(self) -> Any:
        ports = Ports(
            router=self._router,
            leases=self._broker,
            crashes=self._crashes,
            generation=adapter_for,
            models=lambda: model_cards(self._router, self._fleet, self._pictures.listed),
            control=self._control,
            builds=self._builds,
            status=self._status,
            reload=partial(self._reloader.reload, "POST /admin/v1/reload"),
            plan=PlanAnswer(self._router, self._launching, self._broker),
            explain=Journal(self._bus, self._clock, self._options.redactor.clean).explain,
            readiness=self._readiness,
            metrics=Metrics(
                self._bus,
                supervisor.__version__,
                self._vitals.vitals,
                EngineMetrics(self._fleet.instances, adapter_for).read,
            ).render,
            events=EventStream(self._bus, clean=self._options.redactor.clean).frames,
            door=self._door,
            news=EventStream(self._bus, clean=self._options.redactor.clean, pick=news, most=200).frames,
            history=self._vitals.pulse.document,
            meter=self._vitals.meter,
            pictures=self._pictures.service,
            look=self._vitals.rooms.look,
        )
        config = self._reloader.config
        settings = GatewaySettings(
            config.listen.max_body,
            watchdogs=CurrentLimits(lambda: self._reloader.config.supervision),
            early_header=config.broker.queue.early_header,
            responses=config.state_dir / "responses.sqlite",
            logs=config.state_dir / FOLDER_NAME,
        )
        conversations = ContainedKeeper(self._keeper, self._bus)
        return build_app(ports, settings, self._gate, self._clock, self._bus, conversations=conversations)

    def _instance_tools(self, entry: ModelEntry, changed: Callable[[Instance], None]) -> InstanceTools:
        return InstanceTools(
            adapter=ADAPTERS[entry.engine],
            prepare=self._broker.plan_for,
            ended=self._knowledge.care.ended,
            flush=self._keeper.flush,
            environment=self._environment,
            forget_key=self._options.redactor.discard,
            clean=self._options.redactor.clean,
            log=self._logs.of(entry.id),
            runtime_dir=self._reloader.config.runtime_dir,
            clock=self._clock,
            bus=self._bus,
            changed=changed,
            records=self._records,
            crashed=self._crashes.crashed,
            made_of=self._knowledge.made_of,
        )

    def _held(self, pool: str) -> int:
        return self._broker.memory.held(pool)

    def _engine_pids(self) -> list[int]:
        return [instance.pid for instance in self._fleet.instances() if instance.pid is not None]

    def _environment(self, adapter: EngineAdapter, plan: LaunchPlan, key: str) -> dict[str, str]:
        self._options.redactor.add(key)
        secret = {adapter.api_key_variable: key} if adapter.api_key_variable else {}
        return child_environment(
            self._options.env, adapter.pass_through_environment, {**adapter.environment, **plan.env, **secret}
        )

    def _builds_changed(self) -> None:
        """An operator's word: who had given up may try again."""
        for instance in self._fleet.instances():
            instance.forgive()
        self._broker.rethink()
        self._canaries.look()

    def _readiness(self) -> tuple[bool, str]:
        if self._gate.draining:
            return False, "draining"
        return (True, "ready") if self._known else (False, "looking for builds and models")

    async def _panel(self) -> dict[str, Any]:
        catalog = self._router.catalog
        chosen = next(iter(catalog.usable), None) if catalog else None
        try:
            plan = await self._launching.plan(chosen) if chosen else None
        except SupervisorError:
            plan = None  # the panel shows the builds' own problems
        return panel_document(self._status(), catalog, plan)
