"""The one place where errors become HTTP: a table from code to status, types and retry advice.

A request that failed before its first byte gets ``answer``; one that failed later gets ``event``, and no success
terminator after it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Any

import orjson

from supervisor.errors import SupervisorError

# SDKs obey Retry-After blindly; a longer wait is said in words, with x-should-retry: false.
MAX_RETRY_AFTER_SECONDS = 60
INTERNAL_ERROR = "internal_error"
# The engine's own answer; its status and type are facts of the error.
UPSTREAM_REFUSED = "upstream_refused"
# Sent by Anthropic's clients with every request.
ANTHROPIC_HEADER = "anthropic-version"


class Api(StrEnum):
    """Whose form an error takes."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    A1111 = "a1111"


def api_of(path: str, headers: Container[str] = ()) -> Api:
    """Whose clients ask at this path; two APIs list models at the same one, and one of them says who it is."""
    if path.startswith("/api/"):
        return Api.OLLAMA
    if path.startswith("/sdapi/"):
        return Api.A1111
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Api.ANTHROPIC
    if ANTHROPIC_HEADER in headers and (path == "/v1/models" or path.startswith("/v1/models/")):
        return Api.ANTHROPIC
    if path == "/v1/responses" or path.startswith("/v1/responses/"):
        return Api.RESPONSES
    return Api.OPENAI


class Retry(Enum):
    """What a client is told about trying again."""

    UNSAID = auto()
    """Nothing: SDKs do the right thing for this status."""
    NEVER = auto()
    """``x-should-retry: false``: SDKs would retry this status, and it would not help."""
    LATER = auto()
    """``Retry-After``: the error's fact ``retry_after`` in seconds, else the row's own."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one code looks from outside; ``seconds`` is the Retry-After when the error knows none."""

    status: int
    openai: str
    anthropic: str
    retry: Retry = Retry.UNSAID
    seconds: float = 1.0
    anthropic_status: int | None = None

    def status_for(self, api: Api) -> int:
        """The HTTP status in that API."""
        return self.anthropic_status if api is Api.ANTHROPIC and self.anthropic_status else self.status


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A whole HTTP answer that says what went wrong."""

    status: int
    headers: Mapping[str, str]
    body: bytes


_BAD = ("invalid_request_error", "invalid_request_error")
_MISSING = ("invalid_request_error", "not_found_error")
_NOT_ALLOWED = ("invalid_request_error", "permission_error")
_SERVER = ("server_error", "api_error")
_BUSY = ("server_error", "overloaded_error")

TABLE: Mapping[str, Row] = MappingProxyType(
    {
        INTERNAL_ERROR: Row(500, *_SERVER, retry=Retry.NEVER),
        # ConfigError: seen over HTTP only where an admin call touches the config.
        "config_not_found": Row(500, *_SERVER, retry=Retry.NEVER),
        "config_invalid": Row(400, *_BAD),
        "state_dir_unusable": Row(500, *_SERVER, retry=Retry.NEVER),
        "state_dir_locked": Row(500, *_SERVER, retry=Retry.NEVER),
        "address_unusable": Row(500, *_SERVER, retry=Retry.NEVER),
        "runtime_dir_unusable": Row(500, *_SERVER, retry=Retry.NEVER),
        # ModelError
        "models_unknown": Row(503, *_BUSY, retry=Retry.LATER, seconds=2),
        "model_not_found": Row(404, *_MISSING),
        "model_broken": Row(503, *_SERVER, retry=Retry.NEVER),
        "capability_not_served": Row(400, *_BAD),
        # PlanError
        "no_build": Row(503, *_SERVER, retry=Retry.NEVER),
        "build_not_found": Row(404, *_MISSING),
        "build_unusable": Row(503, *_SERVER, retry=Retry.NEVER),
        "setting_refused": Row(500, *_SERVER, retry=Retry.NEVER),
        "device_lost": Row(503, *_SERVER, retry=Retry.NEVER),
        "does_not_fit": Row(400, *_BAD),
        # InstanceError
        "start_failed": Row(503, *_SERVER, retry=Retry.LATER, seconds=5),
        "start_stalled": Row(504, *_SERVER, retry=Retry.LATER, seconds=5),
        "instance_failed": Row(503, *_SERVER, retry=Retry.NEVER),
        "instance_stopping": Row(503, *_BUSY, retry=Retry.LATER),
        # AdmissionError
        "queue_full": Row(
            429, "rate_limit_error", "overloaded_error", retry=Retry.LATER, seconds=5, anthropic_status=529
        ),
        "caller_busy": Row(429, "rate_limit_error", "rate_limit_error", retry=Retry.LATER),
        "queue_timeout": Row(503, *_BUSY, retry=Retry.LATER, seconds=10),
        "no_room": Row(503, *_BUSY, retry=Retry.LATER, seconds=60),
        "draining": Row(503, *_BUSY, retry=Retry.LATER, seconds=5),
        "storage_timeout": Row(503, *_BUSY, retry=Retry.LATER, seconds=2),
        "storage_unusable": Row(503, *_BUSY, retry=Retry.LATER, seconds=10),
        # UpstreamError
        "upstream_died": Row(502, *_SERVER, retry=Retry.LATER),
        "upstream_timeout": Row(504, "server_error", "timeout_error", retry=Retry.NEVER),
        "upstream_unreachable": Row(502, *_SERVER, retry=Retry.LATER),
        "request_crashes_engine": Row(422, *_BAD),
        UPSTREAM_REFUSED: Row(502, *_SERVER, retry=Retry.NEVER),
        "image_out_of_memory": Row(400, *_BAD),
        "image_generation_failed": Row(502, *_SERVER, retry=Retry.NEVER),
        # CallerError
        "invalid_json": Row(400, *_BAD),
        "invalid_request": Row(400, *_BAD),
        "body_too_large": Row(413, "invalid_request_error", "request_too_large"),
        "model_missing": Row(400, *_BAD),
        "url_refused": Row(400, *_BAD),
        "not_found": Row(404, *_MISSING),
        "response_not_found": Row(404, *_MISSING),
        "request_not_found": Row(404, *_MISSING),
        "response_cancelled": Row(409, *_BAD),
        "image_source_required": Row(400, *_BAD),
        "image_undecodable": Row(400, *_BAD),
        "image_generation_cancelled": Row(409, *_BAD),
        "image_job_not_found": Row(404, *_MISSING),
        "image_link_expired": Row(404, *_MISSING),
        "lora_not_found": Row(400, *_BAD),
        "lora_incompatible": Row(400, *_BAD),
        "method_not_allowed": Row(405, *_BAD),
        "unauthorized": Row(401, "invalid_request_error", "authentication_error"),
        "forbidden": Row(403, *_NOT_ALLOWED),
        "cross_origin": Row(403, *_NOT_ALLOWED),
        "wrong_host": Row(403, *_NOT_ALLOWED),
    }
)

_ANTHROPIC_BY_STATUS: Mapping[int, str] = MappingProxyType(
    {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
)


def row_for(error: SupervisorError) -> Row:
    """The error's row; a code that the table lacks is an internal error."""
    row = TABLE.get(error.code, TABLE[INTERNAL_ERROR])
    if error.code != UPSTREAM_REFUSED:
        return row
    status = error.facts.get("status") or row.status
    client_fault = status < 500  # noqa: PLR2004  HTTP's border between the client's fault and the server's
    anthropic = _ANTHROPIC_BY_STATUS.get(status, "invalid_request_error" if client_fault else "api_error")
    retry = Retry.LATER if status in {429, 503} else Retry.UNSAID if client_fault else Retry.NEVER
    kind = error.facts.get("type") or ("invalid_request_error" if client_fault else "server_error")
    return Row(status, kind, anthropic, retry=retry)


def internal_error(request_id: str) -> SupervisorError:
    """What a client hears of an exception that nobody expected: nothing of its text."""
    return SupervisorError(
        INTERNAL_ERROR, f"Something went wrong inside Enginehouse; its log says what, under request {request_id}."
    )


def answer(error: SupervisorError, request_id: str, api: Api = Api.OPENAI) -> ErrorAnswer:
    """Status, headers and body for a request that has not been answered yet."""
    row = row_for(error)
    headers = {"Content-Type": "application/json", **_retry_headers(error, row)}
    if allow := error.facts.get("allow"):
        headers["Allow"] = allow
    if challenge := error.facts.get("challenge"):
        headers["WWW-Authenticate"] = challenge
    return ErrorAnswer(row.status_for(api), headers, orjson.dumps(_body(error, row, request_id, api)))


def event(error: SupervisorError, request_id: str, api: Api = Api.OPENAI) -> bytes:
    """The last words of a stream that has begun, as the API's clients read them: an event, or Ollama's line."""
    body = _body(error, row_for(error), request_id, api)
    if api is Api.OLLAMA:
        return orjson.dumps(body) + b"\n"
    named = api is not Api.OPENAI
    if api is Api.RESPONSES:
        body = {"type": "error", **body["error"], "sequence_number": 0}
    return (b"event: error\n" if named else b"") + b"data: " + orjson.dumps(body) + b"\n\n"


def _body(error: SupervisorError, row: Row, request_id: str, api: Api) -> dict[str, Any]:
    message = error.message
    wait = error.facts.get("retry_after")
    if wait is not None and math.isfinite(wait) and wait > MAX_RETRY_AFTER_SECONDS:
        message = f"{message.rstrip('. ')}. Try again in about {math.ceil(wait)} seconds."
    if api is Api.ANTHROPIC:
        inside = {"type": row.anthropic, "message": message}
        return {"type": "error", "error": inside, "request_id": request_id}
    if api is Api.OLLAMA:
        return {"error": message}
    code = error.facts.get("upstream_code") or error.code
    extras = error.facts.get("extras") or {}
    body: dict[str, Any] = {
        "error": {**extras, "message": message, "type": row.openai, "param": error.facts.get("param"), "code": code}
    }
    # A1111's clients look for `detail`; Open WebUI, which speaks to both, for the message inside `error`.
    return {**body, "detail": message} if api is Api.A1111 else body


def _retry_headers(error: SupervisorError, row: Row) -> dict[str, str]:
    wait = error.facts.get("retry_after")
    hopeless = bool(error.facts.get("hopeless"))  # the same start would end the same way
    if hopeless or row.retry is Retry.NEVER or (wait is not None and wait > MAX_RETRY_AFTER_SECONDS):
        return {"x-should-retry": "false"}
    if row.retry is Retry.UNSAID:
        return {}
    seconds = max(1, math.ceil(row.seconds if wait is None else wait))
    return {"Retry-After": str(seconds)}
