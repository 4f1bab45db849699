"""The document of ``/admin/v1/status`` and the rows of ``/v1/models``, from what the owners of things say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from engines.contract import DeviceListing, LaunchPlan
from supervisor.broker.broker import Broker
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.standing import BuildHealth, Pair, Standing
from supervisor.clock import Clock
from supervisor.gateway.ports import ModelCard
from supervisor.instances.exit_report import ExitReport
from supervisor.instances.fleet import Fleet
from supervisor.instances.instance import Instance
from supervisor.models.catalog import Catalog, ModelEntry
from supervisor.planning.context import default_ctx_size
from supervisor.routing.router import Router


def plan_document(plan: LaunchPlan) -> dict[str, Any]:
    """A plan as ``plan --json`` prints it."""
    return {
        "model": plan.model_id,
        "engine": plan.engine.value,
        "build": plan.build,
        "argv": [str(plan.executable), *plan.argv],
        "threads": plan.threads,
        "threads_batch": plan.threads_batch,
        "n_gpu_layers": plan.n_gpu_layers,
        "ctx_size": plan.ctx_size,
        "slots": plan.slots,
        "cache_type": plan.cache_type,
        "devices": None if plan.devices is None else list(plan.devices),
        "tensor_split": list(plan.tensor_split),
        "n_cpu_moe": plan.n_cpu_moe,
        "memory": {pool: _pool_memory(plan, pool) for pool in plan.memory},
        "fits": plan.fits,
        "degraded": list(plan.degraded),
        "rationale": [{"choice": c.choice, "value": c.value, "reason": c.reason} for c in plan.rationale],
        "warnings": list(plan.warnings),
        "attempts": [{"step": a.step, "needed": dict(a.needed), "budget": dict(a.budget)} for a in plan.attempts],
    }


def _pool_memory(plan: LaunchPlan, pool: str) -> dict[str, Any]:
    """One pool's parts in bytes; ``upper`` is the margin on top of ``total``, and both must be within ``budget``."""
    part, budget = plan.memory[pool], plan.budgets.get(pool)
    return {
        **asdict(part),
        "total": part.total,
        "budget": budget.bytes if budget else None,
        "budget_reason": budget.why if budget else None,
    }


class StatusDocument:
    """Puts the status together when it is asked for; keeps nothing."""

    def __init__(
        self,
        version: str,
        clock: Clock,
        fleet: Fleet,
        broker: Broker,
        builds: Callable[[], list[dict[str, Any]]],
        address: Callable[[], str | None],
        more: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._more = more
        self._version = version
        self._clock = clock
        self._began = clock.monotonic()
        self._fleet = fleet
        self._broker = broker
        self._builds = builds
        self._address = address

    def __call__(self) -> dict[str, Any]:
        """The whole document; see the interface in docs/api.md."""
        tickets = self._broker.queue_view()
        return {
            "version": self._version,
            "uptime_seconds": round(self._clock.monotonic() - self._began, 3),
            "address": self._address(),
            "instances": [self.instance(instance) for instance in self._fleet.instances()],
            "builds": self._builds(),
            "ledger": self._broker.memory.document(),
            "queue": {"waiting": len(tickets), "tickets": tickets},
            "peers": [],
            **self._more(),
        }

    def instance(self, instance: Instance) -> dict[str, Any]:
        """One instance's row."""
        launch = instance.launch
        plan = instance.plan
        return {
            "id": instance.id,
            "model": instance.model_id,
            "engine": instance.entry.engine.value,
            "build": plan.build if plan else None,
            "state": instance.state.value,
            "load_share": instance.load_share,
            "pid": launch.pid if launch else None,
            "since": _time(instance.since),
            "generation": instance.generation,
            "accepting": instance.accepting,
            "plan": plan_document(plan) if plan else None,
            "memory": {pool: asdict(columns) for pool, columns in instance.memory.items()},
            "pinned": book.pinned if (book := self._broker.books.get(instance.model_id)) else instance.entry.pinned,
            "leases": len(self._broker.leases_on(instance.model_id)),
            "slots": instance.slots,
            "failure": instance.failure.message if instance.failure else None,
            "last_exit": _last_exit(instance.last_exit),
        }


def _last_exit(report: ExitReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "phase": report.phase,
        "code": report.exit_code,
        "signal": report.signal,
        "kind": report.verdict.kind.value,
        "blames": report.verdict.blames.value,
        "why": report.verdict.why,
        "planned": report.planned,
        "blamed_on_request": report.blamed_on_request,
        "at": _time(report.at),
        "memory": asdict(report.memory) if report.memory else None,
        "log": list(report.log),
    }


def build_row(build: FoundBuild, standing: Standing, *, pinned: bool = False) -> dict[str, Any]:
    """One build's row; one that can't even say its version counts as set aside, whatever else is known of it."""
    devices = build.facts.devices
    return {
        "name": build.name,
        "engine": build.engine.value,
        "executable": str(build.executable),
        "version": build.facts.version,
        "fingerprint": build.fingerprint,
        "devices": None if devices is None else [_device_name(device) for device in devices],
        "pinned": pinned,
        "health": BuildHealth.QUARANTINED.value if build.problem else standing.health.value,
        "strikes": [{**asdict(strike), "at": _time(strike.at)} for strike in standing.all_strikes],
        "reason": build.problem or standing.reason,
        "until": standing.until.value if standing.until else None,
        "since": None if standing.since is None else _time(standing.since),
        "set_aside_for": [_pair_row(pair) for pair in standing.pairs if pair.set_aside is not None],
    }


def _pair_row(pair: Pair) -> dict[str, Any]:
    """A model that a build is not used for."""
    return {
        "model": pair.of.model,
        "since": None if pair.set_aside is None else _time(pair.set_aside),
        "strikes": [{**asdict(crash), "at": _time(crash.at)} for crash in pair.crashes],
    }


def nothing_drawn(_entry: ModelEntry) -> dict[str, Any] | None:
    """No model draws."""
    return None


def model_cards(
    router: Router, fleet: Fleet, drawn: Callable[[ModelEntry], dict[str, Any] | None] = nothing_drawn
) -> list[ModelCard]:
    """Rows of ``/v1/models``; the caller leaves out broken ones. ``drawn``: what a model's pictures are."""
    catalog = router.catalog
    if catalog is None:
        return []
    instances = {instance.model_id: instance for instance in fleet.instances()}
    return [_card(entry, instances.get(entry.id), drawn(entry)) for entry in catalog.entries]


def model_row(entry: ModelEntry) -> dict[str, Any]:
    """A model as ``models list`` shows it where no daemon runs."""
    return {
        "id": entry.id,
        "aliases": list(entry.aliases),
        "capabilities": sorted(entry.serves),
        "state": "broken" if entry.broken else "stopped",
        "broken": entry.broken,
        "files": [str(file) for file in entry.files],
    }


def _card(entry: ModelEntry, instance: Instance | None, pictures: dict[str, Any] | None) -> ModelCard:
    plan = instance.plan if instance else None
    wished = getattr(entry.launch, "ctx_size", None)
    metadata = entry.metadata
    trained = metadata.context_length if metadata else None
    context = None if pictures is not None else wished or default_ctx_size(trained)
    return ModelCard(
        id=entry.id,
        created=_created(entry),
        capabilities=tuple(sorted(entry.serves)),
        state=instance.state.value if instance else "stopped",
        aliases=entry.aliases,
        context_length=plan.ctx_size if plan else context,
        broken=entry.broken,
        file_bytes=metadata.file_bytes if metadata else None,
        format=metadata.format if metadata else None,
        architecture=metadata.architecture if metadata else None,
        quantization=metadata.quantization if metadata else None,
        parameter_count=metadata.parameter_count if metadata else None,
        unlisted=entry.unlisted,
        pictures=pictures,
    )


def _created(entry: ModelEntry) -> int | None:
    """When the model's file was last written; None when it can't be asked."""
    try:
        return int(entry.files[0].stat().st_mtime) if entry.files else None
    except OSError:
        return None


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def panel_document(status: dict[str, Any], catalog: Catalog | None, plan: LaunchPlan | None) -> dict[str, Any]:
    """The status with what the first panel shows beside it: models, device names, and the threads with their reason."""
    threads = next((choice for choice in plan.rationale if choice.choice == "threads"), None) if plan else None
    return {
        **status,
        "models": [
            {"id": entry.id, "aliases": list(entry.aliases), "serves": sorted(entry.serves)}
            for entry in (catalog.usable if catalog else ())
        ],
        "threads": {"value": threads.value, "reason": threads.reason} if threads else None,
    }


def _device_name(device: DeviceListing) -> str:
    software = ", software: not used unless a model names it" if device.software else ""
    return f"{device.id} ({device.name}{software})"
