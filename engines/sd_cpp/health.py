"""sd-server's life signs: it has no ``/health``, and opens its port only when the model is loaded."""

from __future__ import annotations

from engines.contract import Health, LogSignal

HEALTH_PATH = "/v1/models"
_OK = 200


def read_line(line: str) -> LogSignal | None:
    """``listening on: …`` comes last; what was loaded is told just before."""
    if "listening on: " in line:
        return LogSignal.LISTENING
    if "total params memory size" in line:
        return LogSignal.MODEL_LOADED
    return None


def read_health(status: int, _body: bytes) -> Health:
    """Whoever answers has loaded its model."""
    return Health.READY if status == _OK else Health.SICK
