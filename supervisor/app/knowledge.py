"""What is known of models, builds and the machine: wired once, for the daemon and for commands without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from engines.contract import EngineAdapter
from engines.registry import ADAPTERS, adapter_for
from supervisor.app.conversations import planned_folder
from supervisor.broker.build_care import BuildCare
from supervisor.broker.cpu_watch import CpuReading
from supervisor.broker.cpus import Cpus, Running
from supervisor.broker.launching import Launching
from supervisor.broker.learned import SCHEMA as LEARNED_SCHEMA
from supervisor.broker.learned import LearnedMemory
from supervisor.broker.pressure import PressureReading
from supervisor.broker.rooms import OurEngines, RoomLimits, Rooms
from supervisor.broker.seen_devices import SCHEMA as DEVICES_SCHEMA
from supervisor.broker.seen_devices import SeenDevices
from supervisor.builds import health
from supervisor.builds.catalog import Candidate, find_builds
from supervisor.builds.driver import driver_version
from supervisor.builds.fingerprint import SCHEMA as FINGERPRINT_SCHEMA
from supervisor.builds.fingerprint import Fingerprints
from supervisor.builds.host_mark import host_mark
from supervisor.builds.inspect import SCHEMA as FACTS_SCHEMA
from supervisor.builds.inspect import BuildInspector
from supervisor.builds.shelf import BuildShelf
from supervisor.builds.standing import QuarantineLimits
from supervisor.clock import SystemClock
from supervisor.config.schema import Config
from supervisor.events import EventBus, NoModels
from supervisor.host.boot import boot_mark
from supervisor.host.budget import HostLimits
from supervisor.host.cgroup import find_cgroup
from supervisor.host.cpu import read_cpu
from supervisor.host.device_rooms import DeviceWish, DeviceWishes
from supervisor.host.files import HostFiles
from supervisor.host.memory import read_memory
from supervisor.host.nvidia import NvidiaWatch
from supervisor.host.overrides import override_cpu, with_overrides
from supervisor.host.snapshot import HostSnapshot, take_snapshot
from supervisor.host.throttling import read_throttling
from supervisor.models.catalog import ModelEntry, build_catalog, explicit_files, explicit_parts
from supervisor.models.inventory import Inventory
from supervisor.models.metadata_cache import CACHE_SCHEMA as MODELS_SCHEMA
from supervisor.processes.child_process import SpawnSpec
from supervisor.processes.command import Output, run_command
from supervisor.processes.proc_table import MARK_VARIABLE
from supervisor.routing.router import Router
from supervisor.storage import JsonFile

_ROOT = Path("/")
_NOBODY = OurEngines()


class Knowledge:
    """What is known of models, builds and the machine; the daemon's, or a command's that runs without one.

    Attributes:
        router: finds models by name, once ``look_for_models`` has run.
        shelf: builds, once they were looked at.
        learned: what launches have shown of their memory.
        seen: devices that were there.
        nvidia: asks NVIDIA's driver.
        book: what is held against builds.
        care: chooses builds, and tells the book how launches ended.
        cpus: the CPU budget as last seen.
        launching: makes plans; ``ours`` are the engines that run meanwhile, none where no daemon runs.
    """

    def __init__(
        self,
        config: Config,
        env: Mapping[str, str],
        bus: EventBus,
        state: Path | None,
        *,
        root: Path = _ROOT,
        ours: OurEngines = _NOBODY,
        mark: str | None = None,
        running: Running = lambda _: (),
        slot_files: Callable[[], Path | None] | None = None,
    ) -> None:
        """``mark``: what short commands carry in their environment, so that one left behind is found.

        ``slot_files``: folder for what engines keep of conversations; None: as the config says.
        """
        self._config = config
        self._env = env
        self._bus = bus
        self._state = state
        self._root = root
        self._mark = mark
        self.nvidia = NvidiaWatch()
        self._inventory = Inventory(ADAPTERS, self._state_file("models.json", MODELS_SCHEMA), bus)
        self.router = Router()
        self.shelf = self._build_shelf()
        self.learned = LearnedMemory(self._state_file("memory.json", LEARNED_SCHEMA), bus)
        boot = boot_mark(HostFiles(root))
        self.seen = SeenDevices(self._state_file("devices.json", DEVICES_SCHEMA), boot, bus)
        self.book = self._build_book()
        self.care = BuildCare(adapter_for, self.shelf, self.book, SystemClock(), bus, self._stable_after)
        rooms = Rooms(self.read_host, self._room_limits, ours, self.learned, self.seen)
        self.cpus = Cpus(lambda: self._config.host.cpu_share, running, bus)
        kept = slot_files or (lambda: planned_folder(self._config))
        self.launching = Launching(
            ADAPTERS, self.shelf, rooms, self._concessions, bus, self.care, self.cpus, slot_files=kept
        )

    def use(self, config: Config) -> None:
        """Look by another config from now on."""
        self._config = config

    async def look_for_models(self) -> None:
        """Scan the model folders and hand the catalog to the router."""
        config = self._config
        found = await self._inventory.refresh(config.model_dirs, explicit_files(config), explicit_parts(config))
        catalog = build_catalog(config, found, ADAPTERS)
        for event in catalog.events():
            self._bus.publish(event)
        if not catalog.entries:
            self._bus.publish(NoModels(tuple(map(str, config.model_dirs))))
        self.router.use(catalog)

    async def made_of(self, entry: ModelEntry) -> object:
        """The builds of the model's engine as they are now: while they stay the same, a failed launch fails again."""
        builds = await self.shelf.look(entry.engine)
        return tuple((build.name, build.fingerprint, build.problem) for build in builds)

    def read_host(self) -> HostSnapshot:
        """The machine as it is now, with what the config says over it."""
        host = self._config.host
        return with_overrides(take_snapshot(self._root, self.nvidia), host.cpus, host.reserve.cpus)

    def read_cpu(self) -> CpuReading:
        """The CPUs as they are now, with what the config says over them, and how much its group is throttled."""
        host, files = self._config.host, HostFiles(self._root)
        found = read_cpu(files, find_cgroup(files))
        budget = override_cpu(found, host.cpus, host.reserve.cpus)
        return CpuReading(budget, found.quota, read_throttling(files, found.source))

    def read_pressure(self) -> PressureReading:
        """The memory that is left, by the limits above this process and the machine itself."""
        files = HostFiles(self._root)
        found = read_memory(files, find_cgroup(files))
        return PressureReading(found.available_bytes, found.limit_bytes or found.host_total_bytes, found.pressure)

    def pressure_grace(self) -> float:
        """Seconds that a shortage of memory lasts before idle engines are let go."""
        return self._config.broker.eviction.pressure_grace

    def _concessions(self) -> tuple[str, ...]:
        return self._config.concessions

    def look_interval(self) -> float:
        """Seconds between two looks at the CPUs while an engine runs."""
        return self._config.host.look_every

    def _build_shelf(self) -> BuildShelf:
        inspector = BuildInspector(
            adapter_for=adapter_for,
            fingerprints=Fingerprints(self._state_file("fingerprints.json", FINGERPRINT_SCHEMA), self._bus),
            own_env=self._env,
            bus=self._bus,
            cache=self._state_file("builds.json", FACTS_SCHEMA),
            host=host_mark(),
            run=self._run_marked,
        )
        candidates = {kind: partial(self._candidates, adapter) for kind, adapter in ADAPTERS.items()}
        return BuildShelf(candidates, inspector, SystemClock())

    async def _run_marked(self, spec: SpawnSpec, limit_seconds: float) -> Output:
        if self._mark is not None:
            spec = replace(spec, env={**spec.env, MARK_VARIABLE: self._mark})
        return await run_command(spec, limit_seconds)

    def _build_book(self) -> health.BuildBook:
        """Without a state folder of one's own, what the daemon's file says is read, and nothing is written."""
        folder = self._config.state_dir if self._state is None else self._state
        return health.BuildBook(
            JsonFile(folder / health.FILE_NAME, health.SCHEMA),
            SystemClock(),
            self._bus,
            self._quarantine_limits,
            partial(driver_version, self._root),
            read_only=self._state is None,
        )

    def _quarantine_limits(self) -> QuarantineLimits:
        limits = self._config.supervision.quarantine
        return QuarantineLimits(limits.strikes, limits.window, limits.cooldown)

    def idle_check(self) -> float | None:
        """Idle seconds after which a build that was never tried is; None: it is not."""
        return self._config.supervision.quarantine.idle_check or None

    def _stable_after(self) -> float:
        return self._config.supervision.restart.stable_after

    def _candidates(self, adapter: EngineAdapter) -> tuple[Candidate, ...]:
        return find_builds(self._config.engines[adapter.kind], adapter, self._env)

    def _room_limits(self) -> RoomLimits:
        host = self._config.host
        wishes = {name: DeviceWish(device.reserve, device.use) for name, device in host.devices.items()}
        return RoomLimits(HostLimits(host.memory, host.reserve.memory), DeviceWishes(wishes), host.device_lost)

    def _state_file(self, name: str, schema: int) -> JsonFile | None:
        return None if self._state is None else JsonFile(self._state / name, schema)
