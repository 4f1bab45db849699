"""Events as sentences, for people who look at the status page; the figures behind each are in its facts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Any

from supervisor.events import Event
from supervisor.units import format_duration, format_size

# By the event's name: rooms beside this one have events too, and are not imported from here.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "daemon_listening": "The daemon listens at {address}.",
        "daemon_stopping": "The daemon stops ({reason}); running requests get {drain_seconds}.",
        "config_reloaded": "The config was read again ({cause}). Changed: {changed}. For a restart: {needs_restart}.",
        "config_rejected": "The config can't be used ({cause}), the old one goes on: {reason}",
        "config_missing": "{path} is not there any more: the config goes on as it was until the file is back.",
        "config_watch_limited": "The config's folder gives no notices, it is looked at every {poll_seconds}: {reason}",
        "build_found": "Build {build} of {engine} can be used, version {version}.",
        "build_unusable": "Build {build} of {engine} can't be used: {reason}",
        "build_health_changed": "Build {build} is {new}, it was {old}: {reason}",
        "build_fell_back": "{model} could not start with build {build}, next is {next_build}: {why}",
        "build_pinned": "Build {build} is preferred for {engine}.",
        "model_set_aside": "Build {build} is not used for {model} after {crashes} crashes: {why}",
        "canary_tried": "The tiny model was tried with build {build} ({cause}) and {outcome}: {why}",
        "device_lost": "{card} ({device}) is gone, policy {policy}: {why}",
        "model_found": "{model} can be asked for.",
        "no_models": "There is nothing to serve: no model in {folders}.",
        "model_broken": "{model} can't be served: {reason}",
        "model_path_skipped": "{path} was left out of the search for models: {reason}",
        "model_name_taken": "The name {name_wanted} goes to {kept}, not to {dropped}: {reason}",
        "instance_changed": "{model} is {new}: {reason}",
        "memory_reserved": (
            "{model} is admitted: {anonymous_bytes} of its own and {mapped_bytes} of files in {pool}, "
            "{free_bytes} stay free."
        ),
        "request_leased": (
            "A request for {model} is admitted after {queue_seconds} in the queue and {load_seconds} for the load."
        ),
        "plan_made": "{model} was planned on build {build}. Given up: {degraded}.",
        "plan_warning": "{model}: {reason}",
        "launch_started": "{model} starts as process {pid}.",
        "launch_ready": "{model} is ready after {seconds}.",
        "launch_exited": "The engine of {model} ended while {phase} ({kind}): {why}",
        "memory_observed": "{model} was looked at for the memory that it holds.",
        "memory_not_back": "{model} is gone, and its memory was not seen to be free after {waited_seconds}.",
        "over_committed": (
            "{pool} has promised {over_bytes} too much: {reserved_bytes} of {budget_bytes}. Idle engines go."
        ),
        "evicted": "{model} is stopped to make room for {beneficiary}: {why}",
        "host_pressure": "The machine has been short of memory for {lasted_seconds}: {why}",
        "cpu_budget_changed": "{new} CPUs may be used, it was {old}; {threads} threads: {why}",
        "cpu_throttled": "Engines stood still in {throttled} of {periods} periods of the CPU quota: {advice}",
        "gpu_not_used": "{model} was planned with a GPU and computes on the CPU: {line}",
        "probe_missed": "{model} did not answer a probe, {missed} of {allowed}.",
        "crash_blamed_on_request": "A request crashed {model} twice; it is refused for {refused_seconds}.",
        "request_denied": "A request of {caller} for {model} was refused ({code}): {why}",
        "request_finished": "{method} {path} of {caller} ended with {status} ({outcome}) after {seconds}.",
        "response_not_stored": "A response was given and could not be kept, nothing can go on from it: {reason}",
        "session_saved": "A conversation of {tokens} tokens with {model} was saved ({why}) in {seconds}, {bytes}.",
        "session_restored": "A conversation of {tokens} tokens with {model} was restored ({seconds}).",
        "session_not_saved": "A conversation of {tokens} tokens with {model} was not saved: {reason}",
        "session_not_restored": "A saved conversation with {model} was of no use, and is computed anew: {reason}",
        "sessions_not_kept": "Conversations with {model} are not kept from now on: {reason}",
        "session_files_dropped": "{files} files of conversations went, {bytes}: {reason}",
        "session_folder_unusable": "No conversation can be kept in {path}: {reason}",
        "request_unreadable": "{caller} sent what can't be read: {reason}",
        "slot_stuck": "A slot of {model} was not seen idle {waited_seconds} after its client left.",
        "internal_error": "A fault of our own in {where}: {error}",
        "state_file_unusable": "{path} was set aside: {reason}",
        "certificate_loaded": "The new certificate {certificate} is shown from now on.",
        "certificate_unusable": "The certificate {certificate} can't be used, the old one goes on: {reason}",
        "launch_record_failed": "A launch could not be written down in {path}: {reason}",
        "leftovers_found": "An earlier daemon left processes {pids} behind; they are being ended.",
        "orphan_reaped": "Process {pid} of {model}, left by an earlier daemon, was ended: {why}",
        "orphan_remains": "Process {pid} of {model}, left by an earlier daemon, can't be ended.",
        "engine_remains": "Processes {pids} of {model} outlived SIGKILL.",
    }
)
# What says what is going on, and is no decision; the page shows it elsewhere.
_NO_NEWS = frozenset({"model_found", "memory_observed", "launch_started"})
_CALLS = ("/v1/", "/api/", "/upstream/", "/sdapi/")
_GOOD = 400
_LONG_WAIT_SECONDS = 1.0
# What a fact that is None means, where it does not mean that it isn't known.
_UNKNOWN = MappingProxyType(
    {
        "bytes": "by the engine itself",
        "beneficiary": "others",
        "next_build": "none",
        "build": "none",
        "reason": "nothing is held against it",
    }
)


def sentence(name: str, facts: Mapping[str, Any]) -> str:
    """The event in words; one that has no sentence of its own says its name."""
    form = SENTENCES.get(name)
    if form is None:
        return f"{name.replace('_', ' ').capitalize()}."
    text = Formatter().vformat(form, (), _Words(facts))
    return text if text.endswith((".", "!", "?")) else f"{text}."


def news(event: Event) -> dict[str, Any] | None:
    """What the page's list says of the event beside its facts; None: it is no news there."""
    name, facts = event.name(), event.facts()
    known = _WORTH_TELLING.get(name)
    if (event.level == "debug" and known is None) or name in _NO_NEWS or (known is not None and not known(facts)):
        return None
    return {"sentence": sentence(name, facts)}


def _is_failed_call(facts: Mapping[str, Any]) -> bool:
    return facts["status"] >= _GOOD and str(facts["path"]).startswith(_CALLS)


def _is_change_of_its_own(facts: Mapping[str, Any]) -> bool:
    """Not one that another event tells with more: what was admitted, what is ready, what was evicted, what ended."""
    new, reason = facts["new"], str(facts["reason"])
    return new not in {"ready", "stopped"} and reason != "wanted" and not reason.startswith("evicted: ")


# Of these, only some are news; of other events, all that are told above debug level.
_WORTH_TELLING: Mapping[str, Callable[[Mapping[str, Any]], bool]] = MappingProxyType(
    {
        "request_finished": _is_failed_call,
        "request_leased": lambda facts: facts["queue_seconds"] + facts["load_seconds"] >= _LONG_WAIT_SECONDS,
        "memory_reserved": lambda _facts: True,
        "instance_changed": _is_change_of_its_own,
        "launch_exited": lambda facts: not facts["planned"],
        "plan_made": lambda facts: bool(facts["degraded"]),
    }
)


class _Words(Mapping[str, str]):
    """Facts, each as people write it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> str:
        return _word(name, self._facts.get(name))

    def __iter__(self) -> Any:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def _word(name: str, value: Any) -> str:
    if value is None:
        return _UNKNOWN.get(name, "unknown")
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "nothing"
    if name == "bytes" or name.endswith("_bytes"):
        return format_size(value)
    if name == "seconds" or name.endswith("_seconds"):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
