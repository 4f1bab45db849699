"""The MLX server's life signs: its log lines, ``/health``, ``/slots``. It answers as llama-server does."""

from __future__ import annotations

import re

import orjson

from engines.contract import Health, LogSignal
from engines.declared import HOST, Declared, DeclaredBuffer

HEALTH_PATH = "/health"
SLOTS_PATH = "/slots"
_OK = 200
_UNAVAILABLE = 503
_WEIGHTS = re.compile(r"memory: weights (\d+) bytes on (\S+)$")


def read_line(line: str) -> LogSignal | None:
    """``… - INFO - listening on unix://…`` and ``… - INFO - model loaded in …``."""
    if "listening on " in line and " - INFO - listening on " in line:
        return LogSignal.LISTENING
    if "model loaded" in line and " - INFO - model loaded in " in line:
        return LogSignal.MODEL_LOADED
    return None


def read_declared(line: str) -> Declared | None:
    """The weights are told exactly; caches grow with the requests."""
    found = _WEIGHTS.search(line) if "memory: weights " in line else None
    if found is None:
        return None
    return DeclaredBuffer(HOST if found[2] == HOST else found[2], "weights", int(found[1]))


def read_health(status: int, body: bytes) -> Health:
    """200 is ready; 503 is loading when it says so; everything else is sick."""
    if status == _OK:
        return Health.READY
    return Health.LOADING if status == _UNAVAILABLE and b"Loading model" in body else Health.SICK


def busy_slots(body: bytes) -> int | None:
    """Answers that are computed, or wait to be."""
    try:
        slots = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(slots, list):
        return None
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))
