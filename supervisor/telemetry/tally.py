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
    ModelFound,
    Record,
    RequestDenied,
    RequestFinished,
    RequestLeased,
    SlotStuck,
)
from supervisor.telemetry.counts import OTHER, Counts, Histogram, Labels, Vocabulary

# More than a home has; each model costs about a hundred series once it is used.
_MODELS = 256
_BUILDS = 64
_CODES = 64
_OUTCOMES = frozenset({"ok", "error", "client_left", "upstream_died"})
_STATUSES = range(100, 600)


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
        self._leased: dict[str, Labels] = {}
        self._rules: dict[type[Event], Callable[[Any], None]] = {
            DaemonListening: self._listening,
            BuildFound: self._build_found,
            BuildUnusable: self._build_unusable,
            ModelFound: self._model_found,
            InstanceChanged: self._instance_changed,
            LaunchStarted: self._launch_started,
            LaunchReady: self._launch_ready,
            LaunchExited: self._launch_exited,
            RequestLeased: self._request_leased,
            RequestDenied: self._request_denied,
            RequestFinished: self._request_finished,
            SlotStuck: self._slot_stuck,
        }

    def count(self, record: Record) -> None:
        """Take one event in; to be given to ``EventBus.listen``."""
        self.counts.events[record.event.name(),] += 1
        rule = self._rules.get(type(record.event))
        if rule is not None:
            rule(record.event)

    def _listening(self, event: DaemonListening) -> None:
        self.counts.listening_seconds = event.seconds_since_exec

    def _build_found(self, event: BuildFound) -> None:
        self._set_build(event.build, event.engine, event.version or "", usable=True)

    def _build_unusable(self, event: BuildUnusable) -> None:
        self._set_build(event.build, event.engine, "", usable=False)

    def _set_build(self, build: str, engine: str, version: str, *, usable: bool) -> None:
        name = self._builds.learn(build)
        # One row per build: an inspection after an update replaces the one before.
        for labels in [labels for labels in self.counts.builds if labels[:2] == (name, engine)]:
            del self.counts.builds[labels]
        self.counts.builds[name, engine, version] = int(usable)

    def _model_found(self, event: ModelFound) -> None:
        self._models.learn(event.model)

    def _instance_changed(self, event: InstanceChanged) -> None:
        self.counts.states[self._models.learn(event.model)] = event.new

    def _launch_started(self, event: LaunchStarted) -> None:
        self.counts.launches[self._models.learn(event.model),] += 1

    def _launch_ready(self, event: LaunchReady) -> None:
        _observe(self.counts.load_seconds, (self._models.learn(event.model),), event.seconds)

    def _launch_exited(self, event: LaunchExited) -> None:
        planned = "true" if event.planned else "false"
        self.counts.exits[self._models.learn(event.model), event.kind, event.blames, planned] += 1

    def _request_leased(self, event: RequestLeased) -> None:
        labels = (self._models.learn(event.model),)
        self.counts.leases[labels] += 1
        _observe(self.counts.queue_seconds, labels, event.queue_seconds)
        self._end_lease(event.request_id)  # a replay has the same id
        self._leased[event.request_id] = labels
        self.counts.active[labels] += 1

    def _request_denied(self, event: RequestDenied) -> None:
        self.counts.denials[self._models.label(event.model), self._codes.learn(event.code)] += 1

    def _request_finished(self, event: RequestFinished) -> None:
        self._end_lease(event.request_id)
        model = "" if event.model is None else self._models.label(event.model)
        status = str(event.status) if event.status in _STATUSES else OTHER
        outcome = event.outcome if event.outcome in _OUTCOMES else OTHER
        self.counts.requests[model, status, outcome] += 1
        if event.model is None:
            return
        _observe(self.counts.request_seconds, (model,), event.seconds)
        if event.first_byte_seconds is not None:
            _observe(self.counts.first_byte_seconds, (model,), event.first_byte_seconds)

    def _slot_stuck(self, event: SlotStuck) -> None:
        self.counts.stuck_slots[self._models.learn(event.model),] += 1

    def _end_lease(self, request_id: str) -> None:
        labels = self._leased.pop(request_id, None)
        if labels is not None:
            self.counts.active[labels] -= 1


def _observe(histograms: dict[Labels, Histogram], labels: Labels, seconds: float) -> None:
    histograms.setdefault(labels, Histogram()).observe(seconds)
