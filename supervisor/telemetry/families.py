"""Every metric that there is, in one table: ``metrics.py`` renders by it, ``docs/metrics.md`` is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: without the prefix ``enginehouse_``, and of counters without ``_total``.
        labels: their names, in the order in which counts are kept.
        source: the events that it is made of, or what is read for it at the scrape.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str
    source: str


_MODEL = ("model",)
PREFIX = "enginehouse_"

FAMILIES: tuple[Family, ...] = (
    Family(
        "requests",
        "counter",
        ("model", "status", "outcome"),
        "HTTP requests that ended; outcome is ok, error, client_left or upstream_died.",
        "request_finished",
    ),
    Family("request_seconds", "histogram", _MODEL, "From a request's arrival to its end.", "request_finished"),
    Family(
        "first_byte_seconds", "histogram", _MODEL, "From a request's arrival to its first byte.", "request_finished"
    ),
    Family(
        "first_token_seconds",
        "histogram",
        _MODEL,
        "From a request's arrival to the first content of its engine, also where the client got the answer whole.",
        "request_finished",
    ),
    Family(
        "token_seconds",
        "histogram",
        _MODEL,
        "Between two tokens: each token of an answer counts with that answer's mean.",
        "request_finished",
    ),
    Family("prompt_tokens", "counter", _MODEL, "Tokens of prompts, cached ones too.", "request_finished"),
    Family("cached_tokens", "counter", _MODEL, "Tokens of prompts that were cached.", "request_finished"),
    Family("generated_tokens", "counter", _MODEL, "Tokens that engines wrote.", "request_finished"),
    Family("queue_seconds", "histogram", _MODEL, "Waited for a slot.", "request_leased"),
    Family("load_seconds", "histogram", _MODEL, "From a launch's start to ready.", "launch_ready"),
    Family(
        "swap_seconds",
        "histogram",
        _MODEL,
        "From the first eviction for a model to that model's being ready.",
        "evicted, launch_ready",
    ),
    Family("launches", "counter", _MODEL, "Engine processes started.", "launch_started"),
    Family(
        "launch_exits",
        "counter",
        ("model", "kind", "blames", "planned"),
        "Engine processes ended; kind and blames as in docs/operations.md.",
        "launch_exited",
    ),
    Family(
        "evictions",
        "counter",
        ("model", "drained"),
        "Engines stopped for their memory; drained ones were in use.",
        "evicted",
    ),
    Family("leases", "counter", _MODEL, "Requests that got a slot.", "request_leased"),
    Family("denials", "counter", ("model", "code"), "Requests refused, by the error's code.", "request_denied"),
    Family(
        "session_files",
        "counter",
        ("model", "what"),
        "Conversations saved to files, restored from them, and those that could not be.",
        "session_saved, session_restored, session_not_saved, session_not_restored",
    ),
    Family("stuck_slots", "counter", _MODEL, "Slots not idle in time after their client left.", "slot_stuck"),
    Family(
        "sessions",
        "counter",
        ("model", "outcome"),
        "How requests found their conversation: hit (in a slot), restored (from disk), prefix (a part), or cold.",
        "session_served",
    ),
    Family("build_strikes", "counter", ("build",), "Exits that blame a build.", "plan_made, launch_exited"),
    Family("events", "counter", ("event",), "Events by name.", "all"),
    Family(
        "instance_state",
        "gauge",
        ("model", "state"),
        "1 for the state that a model's instance is in.",
        "instance_changed",
    ),
    Family(
        "instance_memory_bytes",
        "gauge",
        ("model", "pool", "column"),
        "Memory of a model that is loaded; column is predicted, mapped, declared or observed.",
        "memory_observed, launch_exited",
    ),
    Family("active_leases", "gauge", _MODEL, "Requests that have a slot now.", "request_leased, request_finished"),
    Family("waiting_requests", "gauge", (), "Requests in the queue.", "the queue"),
    Family("build_usable", "gauge", ("build", "engine", "version"), "1 if a build can be chosen.", "build_found"),
    Family(
        "build_health",
        "gauge",
        ("build", "engine", "health"),
        "1 for the health of a build: usable, suspect, quarantined or probation.",
        "build_found, build_unusable, build_health_changed",
    ),
    Family("pool_budget_bytes", "gauge", ("pool",), "What launches may be promised of a memory.", "the memory book"),
    Family("pool_reserved_bytes", "gauge", ("pool",), "What launches were promised of a memory.", "the memory book"),
    Family("pool_foreign_bytes", "gauge", ("pool",), "What others hold of a memory.", "the memory book"),
    Family("cpu_budget_cpus", "gauge", (), "CPUs that may be used.", "the machine, every ten seconds"),
    Family("cpu_quota_cpus", "gauge", (), "The CPU quota, where there is one.", "the machine, every ten seconds"),
    Family("cpu_periods", "counter", (), "Periods of the quota in which anything ran.", "the machine, as above"),
    Family(
        "cpu_throttled_periods",
        "counter",
        (),
        "Periods of the quota at whose end something stood still.",
        "the machine, as above",
    ),
    Family(
        "cpu_throttled_seconds",
        "counter",
        (),
        "Time that the quota made processes stand still, summed over CPUs.",
        "the machine, as above",
    ),
    Family("listening_seconds", "gauge", (), "From the daemon's exec to its open socket.", "daemon_listening"),
    Family("info", "gauge", ("version", "python"), "The daemon.", "none"),
)
