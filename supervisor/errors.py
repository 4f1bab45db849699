"""Every error that leaves a room.

::

    SupervisorError
    ├── ConfigError      the config, the state folder or the address can't be used
    ├── ModelError       the model is unknown, broken, or does not serve what was asked
    ├── PlanError        no build, or no plan that fits
    ├── InstanceError    the engine did not start, or gave up
    ├── AdmissionError   the queue is full, the wait was too long, the daemon drains
    ├── UpstreamError    the engine died, went silent, or refused a request
    ├── PeerError        a paired machine refused or is gone
    └── CallerError      the request itself is wrong

``code`` is stable and may be scripted against; ``facts`` carry the arithmetic. A foreign exception becomes one of
these once, at the seam, with ``from``.
"""

from __future__ import annotations

from typing import Any


class SupervisorError(Exception):
    """Base of all errors: a stable code, a sentence for people, and the facts behind it."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts = facts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.message!r})"


class ConfigError(SupervisorError):
    """``config_not_found config_invalid state_dir_unusable state_dir_locked address_unusable runtime_dir_unusable``."""


class ModelError(SupervisorError):
    """``models_unknown model_not_found model_broken capability_not_served``."""


class PlanError(SupervisorError):
    """``no_build build_not_found build_unusable setting_refused device_lost does_not_fit``."""


class InstanceError(SupervisorError):
    """``start_failed start_stalled instance_failed instance_stopping``."""


class AdmissionError(SupervisorError):
    """``queue_full queue_timeout no_room draining caller_busy storage_timeout storage_unusable``."""


class UpstreamError(SupervisorError):
    """``upstream_died upstream_timeout upstream_unreachable upstream_refused request_crashes_engine``.

    Of pictures: ``image_out_of_memory image_generation_failed``.
    """


class PeerError(SupervisorError):
    """A paired machine; no codes yet."""


class CallerError(SupervisorError):
    """``invalid_json invalid_request body_too_large model_missing url_refused not_found method_not_allowed``.

    Of a response: ``response_not_found response_cancelled``. Of a request: ``request_not_found``.

    Of pictures: ``image_source_required image_undecodable image_generation_cancelled image_job_not_found
    image_link_expired lora_not_found lora_incompatible``.

    At the door: ``unauthorized forbidden cross_origin wrong_host``.
    """
