"""llama-server's life signs: log lines, ``/health``, ``/slots``.

``/health`` refuses the connection, then answers 503 ``Loading model``, then 200 ``{"status":"ok"}``.
"""

from __future__ import annotations

import orjson

from engines.contract import Health, LogSignal

HEALTH_PATH = "/health"
SLOTS_PATH = "/slots"
METRICS_PATH = "/metrics"
# Of common/arg.cpp, ggml-cuda, ggml-vulkan and llama-model.cpp.
_NO_GPU = (
    "no usable GPU found",
    "ggml_cuda_init: failed to initialize CUDA",
    "ggml_vulkan: No devices found",
    "offloaded 0/",
)


def read_line(line: str) -> LogSignal | None:
    """``llama_server: listening on …`` and ``llama_server: model loaded`` of b10068, ``main: …`` of older builds.

    A build whose GPU can't be used says so once and goes on with the CPU.
    """
    if line.endswith("model loaded"):
        return LogSignal.MODEL_LOADED
    if "listening on " in line and ("server is listening on " in line or ": listening on " in line):
        return LogSignal.LISTENING
    if any(said in line for said in _NO_GPU):
        return LogSignal.NO_GPU
    return None


def read_health(status: int, body: bytes) -> Health:
    """200 is ready; 503 is loading when it says so; everything else is sick."""
    if status == 200:  # noqa: PLR2004
        return Health.READY
    if status == 503 and b"oading" in body:  # noqa: PLR2004
        return Health.LOADING
    return Health.SICK


def busy_slots(body: bytes) -> int | None:
    """Slots with ``is_processing`` in an answer of ``/slots``."""
    try:
        slots = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(slots, list):
        return None
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))
