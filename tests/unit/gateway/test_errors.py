from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.errors import AdmissionError, CallerError, ModelError, SupervisorError, UpstreamError
from supervisor.gateway.errors import Api, answer, event, internal_error


def _openai(error: SupervisorError) -> Any:
    return orjson.loads(answer(error, "r1").body)["error"]


def test_an_error_in_openais_form() -> None:
    """Message, type, param and code stand where OpenAI's SDKs look for them."""
    said = answer(ModelError("model_not_found", "there is no model 'x'", param="model"), "r1")
    assert said.status == 404
    assert orjson.loads(said.body) == {
        "error": {
            "message": "there is no model 'x'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_an_error_in_anthropics_form() -> None:
    """A full queue is 529 `overloaded_error` there, and 429 for OpenAI."""
    error = AdmissionError("queue_full", "full")
    said = answer(error, "r1", Api.ANTHROPIC)
    assert said.status == 529
    assert orjson.loads(said.body) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "full"},
        "request_id": "r1",
    }
    assert answer(error, "r1").status == 429


def test_errors_as_events() -> None:
    """Mid-stream, OpenAI's clients get a data frame, Anthropic's an `error` event."""
    error = UpstreamError("upstream_died", "gone")
    openai = event(error, "r1")
    assert openai.startswith(b'data: {"error":{')
    assert openai.endswith(b"}}\n\n")
    assert event(error, "r1", Api.ANTHROPIC).startswith(b'event: error\ndata: {"type":"error"')


@pytest.mark.parametrize(("wait", "header"), [(None, "5"), (0.0, "1"), (0.2, "1"), (1.2, "2"), (60.0, "60")])
def test_retry_after_is_whole_seconds(wait: float | None, header: str) -> None:
    """From 1 to 60, rounded up; the table's own where the error knows none."""
    assert answer(AdmissionError("queue_full", "full", retry_after=wait), "r1").headers["Retry-After"] == header


@pytest.mark.parametrize("wait", [60.5, 3600.0, float("inf")])
def test_a_long_wait_is_said_in_words(wait: float) -> None:
    """SDKs obey Retry-After blindly, so above 60 seconds there is none, and no retry by itself."""
    error = AdmissionError("queue_timeout", "waited", retry_after=wait)
    said = answer(error, "r1")
    assert "Retry-After" not in said.headers
    assert said.headers["x-should-retry"] == "false"
    assert wait == float("inf") or str(int(wait)) in _openai(error)["message"] or "61" in _openai(error)["message"]


def test_what_can_not_get_better_is_not_retried() -> None:
    """A 5xx that would only fail again says so, since SDKs retry 5xx by themselves."""
    assert answer(ModelError("model_broken", "cut short"), "r1").headers["x-should-retry"] == "false"


def test_a_callers_fault_gives_no_advice() -> None:
    """SDKs don't retry 400 anyway."""
    headers = answer(CallerError("invalid_json", "no"), "r1").headers
    assert "Retry-After" not in headers
    assert "x-should-retry" not in headers


def test_an_unknown_code_is_an_internal_error() -> None:
    """A code that the table lacks still gives a proper answer."""
    assert answer(SupervisorError("brand_new", "hm"), "r1").status == 500


def test_an_internal_error_names_the_request_only() -> None:
    """The client gets the id under which the log has the rest."""
    said = answer(internal_error("req-1"), "req-1")
    assert said.status == 500
    assert "req-1" in _openai(internal_error("req-1"))["message"]


@pytest.mark.parametrize(
    ("status", "anthropic"), [(400, "invalid_request_error"), (404, "not_found_error"), (500, "api_error")]
)
def test_the_engines_own_refusal_keeps_its_status(status: int, anthropic: str) -> None:
    """What the engine said passes with its status, type and facts."""
    error = UpstreamError(
        "upstream_refused", "too long", status=status, type="t", upstream_code="c", extras={"n_ctx": 2048}
    )
    assert answer(error, "r1").status == status
    assert _openai(error) == {"n_ctx": 2048, "message": "too long", "type": "t", "param": None, "code": "c"}
    assert orjson.loads(answer(error, "r1", Api.ANTHROPIC).body)["error"]["type"] == anthropic
