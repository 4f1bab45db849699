"""Every kind of event that the daemon publishes, wherever its room is."""

from __future__ import annotations

import importlib
import pkgutil

import supervisor
from supervisor.event_bus import Event


def every_event() -> list[type[Event]]:
    """All of them, each once, in the order of their names."""
    for module in pkgutil.walk_packages(supervisor.__path__, "supervisor."):
        if "event" in module.name.rpartition(".")[2] or "log_" in module.name:
            importlib.import_module(module.name)
    # By name: a slotted dataclass leaves the class that it was made of behind.
    kinds = {kind.name(): kind for kind in _below(Event) if kind.__module__.startswith("supervisor.")}
    return [kinds[name] for name in sorted(kinds)]


def _below(kind: type[Event]) -> list[type[Event]]:
    return [kind for one in kind.__subclasses__() for kind in (one, *_below(one))]
