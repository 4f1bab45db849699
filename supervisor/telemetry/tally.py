"""From events to counts: one short rule per event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.events import (
    BuildFound,
    BuildUnusable,
    DaemonListening,
    Event,
    InstanceChanged,
    LaunchExited,
    LaunchReady,
    LaunchStarted,
    MemoryObserved,
    ModelFound,
    PlanMade,
    Record,
    RequestDenied,
    RequestFinished,
    RequestLeased,
    SlotStuck,
)
from supervisor.memory_events import Evicted
from supervisor.telemetry.counts import OTHER, Counts, Vocabulary

# More than a home has; each model costs about a hundred series once it is used.
_MODELS = 256
_BUILDS = 64
_CODES = 64
_POOLS = 32
_OUTCOMES = frozenset({"ok", "error", "client_left", "upstream_died"})
_STATUSES = range(100, 600)
_STATES = ("stopped", "starting", "ready", "unresponsive", "stopping", "backoff", "failed")
_SESSIONS = frozenset({"hit", "restored", "prefix", "cold"})
_SESSION_FILES = ("session_saved", "session_restored", "session_not_saved", "session_not_restored")
HEALTHS = ("usable", "suspect", "quarantined", "probation")


class Tally:
    """Listens to the bus and counts.

    A model's name becomes a label only after the daemon itself has named it: what a client asks for is not trusted,
    and a model that nobody used has no series.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._models = Vocabulary(_MODELS)
        self._builds = Vocabulary(_BUILDS)
        self._codes = Vocabulary(_CODES)
        self._pools = Vocabulary(_POOLS)
        self._leased: dict[str, str] = {}
        self._planned_on: dict[str, str] = {}
        self._evicting_for: dict[str, float] = {}
        self._rules: dict[type[Event], Callable[[Any], None]] = {
            DaemonListening: self._listening,
            BuildFound: self._build_found,
            BuildUnusable: self._build_unusable,
            ModelFound: self._model_found,
            InstanceChanged: self._instance_changed,
            PlanMade: self._plan_made,
            LaunchStarted: self._launch_started,
            LaunchReady: self._launch_ready,
            LaunchExited: self._launch_exited,
            MemoryObserved: self._memory_observed,
            Evicted: self._evicted,
            RequestLeased: self._request_leased,
            RequestDenied: self._request_denied,
            RequestFinished: self._request_finished,
            SlotStuck: self._slot_stuck,
        }
        # By name: these are of rooms that this one knows nothing of.
        self._named: dict[str, Callable[[Any], None]] = {
            "build_health_changed": self._build_health_changed,
            "session_served": self._session_served,
            **dict.fromkeys(_SESSION_FILES, self._session_file),
        }
        self._at = 0.0

    def count(self, record: Record) -> None:
        """Take one event in; to be given to ``EventBus.listen``."""
        event = record.event
        self._at = record.at
        self.counts.add("events", event.name())
        rule = self._rules.get(type(event)) or self._named.get(event.name())
        if rule is not None:
            rule(event)

    def _listening(self, event: DaemonListening) -> None:
        if event.seconds_since_exec is not None:
            self.counts.gauges["listening_seconds"][()] = event.seconds_since_exec

    def _build_found(self, event: BuildFound) -> None:
        self._set_build(event.build, event.engine, event.version or "", usable=True)

    def _build_unusable(self, event: BuildUnusable) -> None:
        self._set_build(event.build, event.engine, "", usable=False)

    def _set_build(self, build: str, engine: str, version: str, *, usable: bool) -> None:
        name = self._builds.learn(build)
        rows = self.counts.gauges["build_usable"]
        # One row per build: an inspection after an update replaces the one before.
        for labels in [labels for labels in rows if labels[:2] == (name, engine)]:
            del rows[labels]
        rows[name, engine, version] = float(usable)
        self._set_health(name, engine, "usable" if usable else "quarantined")

    def _build_health_changed(self, event: Any) -> None:
        self._set_health(self._builds.learn(event.build), event.engine, event.new)

    def _set_health(self, name: str, engine: str, health: str) -> None:
        for one in HEALTHS:
            self.counts.gauges["build_health"][name, engine, one] = float(one == health)

    def _model_found(self, event: ModelFound) -> None:
        self._models.learn(event.model)

    def _instance_changed(self, event: InstanceChanged) -> None:
        model = self._models.learn(event.model)
        for state in {*_STATES, event.new}:
            self.counts.gauges["instance_state"][model, state] = float(state == event.new)

    def _plan_made(self, event: PlanMade) -> None:
        self._planned_on[self._models.learn(event.model)] = self._builds.learn(event.build)

    def _launch_started(self, event: LaunchStarted) -> None:
        self.counts.add("launches", self._models.learn(event.model))

    def _launch_ready(self, event: LaunchReady) -> None:
        model = self._models.learn(event.model)
        self.counts.observe("load_seconds", model, seconds=event.seconds)
        since = self._evicting_for.pop(model, None)
        if since is not None:
            self.counts.observe("swap_seconds", model, seconds=max(0.0, self._at - since))

    def _launch_exited(self, event: LaunchExited) -> None:
        model = self._models.learn(event.model)
        planned = "true" if event.planned else "false"
        self.counts.add("launch_exits", model, event.kind, event.blames, planned)
        if event.blames == "build" and not event.planned:
            self.counts.add("build_strikes", self._planned_on.get(model, OTHER))
        rows = self.counts.gauges["instance_memory_bytes"]
        for labels in [labels for labels in rows if labels[0] == model]:
            del rows[labels]

    def _memory_observed(self, event: MemoryObserved) -> None:
        model = self._models.learn(event.model)
        for pool, columns in event.memory.items():
            for column, size in columns.items():
                if size is not None:
                    self.counts.gauges["instance_memory_bytes"][model, self._pools.learn(pool), column] = float(size)

    def _evicted(self, event: Evicted) -> None:
        self.counts.add("evictions", self._models.learn(event.model), "true" if event.drained else "false")
        if event.beneficiary is not None:
            self._evicting_for.setdefault(self._models.learn(event.beneficiary), self._at)

    def _request_leased(self, event: RequestLeased) -> None:
        model = self._models.learn(event.model)
        self.counts.add("leases", model)
        self.counts.observe("queue_seconds", model, seconds=event.queue_seconds)
        self._end_lease(event.request_id)  # a replay has the same id
        self._leased[event.request_id] = model
        self._active(model, 1)

    def _request_denied(self, event: RequestDenied) -> None:
        self.counts.add("denials", self._models.label(event.model), self._codes.learn(event.code))

    def _request_finished(self, event: RequestFinished) -> None:
        self._end_lease(event.request_id)
        model = "" if event.model is None else self._models.label(event.model)
        status = str(event.status) if event.status in _STATUSES else OTHER
        outcome = event.outcome if event.outcome in _OUTCOMES else OTHER
        self.counts.add("requests", model, status, outcome)
        if event.model is None:
            return
        self.counts.observe("request_seconds", model, seconds=event.seconds)
        for name in ("first_byte_seconds", "first_token_seconds"):
            if (seconds := getattr(event, name)) is not None:
                self.counts.observe(name, model, seconds=seconds)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
            if tokens := getattr(event, name):
                self.counts.add(name, model, by=tokens)
        if event.token_seconds is not None:
            self.counts.observe("token_seconds", model, seconds=event.token_seconds, times=event.generated_tokens or 1)

    def _session_served(self, event: Any) -> None:
        outcome = event.outcome if event.outcome in _SESSIONS else OTHER
        self.counts.add("sessions", self._models.learn(event.model), outcome)

    def _slot_stuck(self, event: SlotStuck) -> None:
        self.counts.add("stuck_slots", self._models.learn(event.model))

    def _session_file(self, event: Any) -> None:
        self.counts.add("session_files", self._models.learn(event.model), event.name().removeprefix("session_"))

    def _end_lease(self, request_id: str) -> None:
        model = self._leased.pop(request_id, None)
        if model is not None:
            self._active(model, -1)

    def _active(self, model: str, by: int) -> None:
        rows, labels = self.counts.gauges["active_leases"], (model,)
        rows[labels] = rows.get(labels, 0.0) + by
