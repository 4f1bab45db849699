"""The words that both sides of the contract use: kinds, capabilities, failures, and the errors of an engine's room."""

from __future__ import annotations

from enum import StrEnum


class EngineKind(StrEnum):
    """A kind of inference server; the value is its name in configs."""

    LLAMA_CPP = "llama.cpp"
    SD_CPP = "stable-diffusion.cpp"
    MLX = "mlx"


class Capability(StrEnum):
    """What a model can be asked for."""

    CHAT = "chat"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    IMAGES = "images"


class FailureKind(StrEnum):
    """Why a process ended."""

    OUT_OF_DEVICE_MEMORY = "OUT_OF_DEVICE_MEMORY"
    OUT_OF_HOST_MEMORY = "OUT_OF_HOST_MEMORY"
    MODEL_UNREADABLE = "MODEL_UNREADABLE"
    MODEL_UNSUPPORTED = "MODEL_UNSUPPORTED"
    BAD_ARGUMENT = "BAD_ARGUMENT"
    ADDRESS_IN_USE = "ADDRESS_IN_USE"
    MISSING_LIBRARY = "MISSING_LIBRARY"
    INCOMPATIBLE_CPU = "INCOMPATIBLE_CPU"
    INCOMPATIBLE_DRIVER = "INCOMPATIBLE_DRIVER"
    DEVICE_LOST = "DEVICE_LOST"
    ENGINE_ASSERT = "ENGINE_ASSERT"
    CRASH = "CRASH"
    KILLED = "KILLED"
    UNKNOWN = "UNKNOWN"


class Blame(StrEnum):
    """What has to change before a retry can work."""

    BUILD = "build"
    MODEL = "model"
    PLAN = "plan"
    HOST = "host"
    NOBODY = "nobody"


class RunsHere(StrEnum):
    """Whether a build can start on this host at all."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Health(StrEnum):
    """What a readiness or liveness probe's answer means."""

    READY = "ready"
    LOADING = "loading"
    SICK = "sick"


class LogSignal(StrEnum):
    """What a line of an engine's log announces; everything else is only kept."""

    LISTENING = "listening"
    MODEL_LOADED = "model_loaded"
    NO_GPU = "no_gpu"
    """It found no GPU that it can use, or put nothing on one: it computes on the CPU alone."""


class EngineError(Exception):
    """An engine's file or answer that can't be used; ``str()`` says why in words for the owner."""


class ModelFileError(EngineError):
    """A model file that can't be read: cut short, not of this format, or nonsense inside."""


class NotAModelError(ModelFileError):
    """A sound file that is no model of its own: a projector, an adapter, an importance matrix."""


class SettingsError(EngineError):
    """Launch settings that this engine refuses, such as an extra argument that opens a door."""
