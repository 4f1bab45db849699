"""Requests made from ``/openapi.json`` by schemathesis, sound ones and wrong ones: each gets an answer of its API."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import response_schema_conformance

from supervisor.gateway.errors import Api, api_of
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import CHAT, LOG_ALL, ask, chat_body, instance, status
from tests.wire.beside import until

CASES = 500
PATIENCE = 10.0
# Streams that do not end by themselves: their first bytes are their answer.
ENDLESS = {"/admin/v1/events", "/admin/v1/live"}
# What stands there is the engine's own answer, as it is.
NOT_OURS = "/upstream/"
TEXT = {"type": "string"}
SAID = {
    "type": "array",
    "minItems": 1,
    "maxItems": 3,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant"]}, "content": TEXT},
    },
}
# The document says which fields a body must have. With nothing but these no case would come further than the model's
# name: what the fields usually hold is added here, and in the odd half of the cases something else stands there.
USUAL: dict[str, Any] = {
    "model": {"enum": ["m", "m:latest", "nobody"]},
    "messages": SAID,
    "input": {"type": "string", "minLength": 1},
    "prompt": {"type": "string", "minLength": 1},
    "query": TEXT,
    "documents": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
}
SOUND_MORE: dict[str, Any] = {
    "stream": {"type": "boolean"},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 9},
    "keep_alive": {"enum": ["10m", "1h"]},
}
ODD = ("tools", "tool_choice", "options", "stop", "stream_options", "thinking", "system", "format", "images", "n")
ODD_MORE: dict[str, Any] = SOUND_MORE | {key: {} for key in ODD}


def _operations(document: dict[str, Any], *, odd: bool) -> list[Any]:
    """What the document describes, with usual values beside the ones that it leaves open, or with any."""
    made = copy.deepcopy(document)
    for found in made["paths"].values():
        for operation in found.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = {"type": "string", "minLength": 1} if odd else {"enum": ["m"]}
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                usual = {key: {"anyOf": [USUAL[key], {}]} if odd else USUAL[key] for key in schema["required"]}
                model = {"model": USUAL["model"] if odd else {"enum": ["m"]}}
                schema["properties"] = {**(ODD_MORE if odd else SOUND_MORE), **usual, **model}
                schema["additionalProperties"] = odd
    found_all: Iterable[Any] = schemathesis.openapi.from_dict(made).get_all_operations()
    return [found.ok() for found in found_all]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One of its own: the cases load, unload and pin."""
    models = {"m": {"file": str(tiny_model(tmp_path)), "serves": ["chat", "embeddings", "rerank"]}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models), env=LOG_ALL) as daemon:
        yield daemon
        assert ask(daemon, "/admin/v1/models/m/unload", b"").status == 200


@pytest.mark.timeout(300)
def test_every_request_is_answered_in_its_apis_form(daemon: Daemon) -> None:
    """No case is an internal error, hangs, or is refused in another form than its API's; then all is as before."""
    document = ask(daemon, "/openapi.json").json
    sound, odd = _operations(document, odd=False), _operations(document, odd=True)
    asked: list[tuple[str, int]] = []
    # What takes nothing has one case; what takes a body is worth four that only take a name.
    weights = [4 if operation.body else bool(list(operation.path_parameters)) for operation in sound]
    each = CASES / sum(weights)
    with requests.Session() as session:
        for one, other, weight in zip(sound, odd, weights, strict=True):
            _ask_about(daemon, session, (one, other), math.ceil(each * weight) or 1, asked)
    assert len(asked) >= CASES
    # They are no mere refusals: the engine answers a good part of them, by every API.
    answered = {path for path, code in asked if code == HTTPStatus.OK}
    assert {CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/rerank"} <= answered
    assert sum(code == HTTPStatus.OK for _, code in asked) > CASES / 5
    assert [record for record in daemon.records if record.get("event") == "internal_error"] == []
    assert ask(daemon, CHAT, chat_body("m")).status == 200
    until(lambda: instance(daemon, "m")["leases"] == 0, PATIENCE)
    assert status(daemon)["queue"]["waiting"] == 0


def _ask_about(
    daemon: Daemon, session: requests.Session, both: tuple[Any, Any], count: int, asked: list[tuple[str, int]]
) -> None:
    """``count`` cases of one operation, the same at every run: sound ones, odd ones, and ones that break its schema."""
    sound, odd = both
    strategies = [sound.as_strategy(), odd.as_strategy()]
    if sound.body or list(sound.path_parameters):
        strategies.append(odd.as_strategy(generation_mode=GenerationMode.NEGATIVE))

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(strategies))
    def run(case: Any) -> None:
        asked.append((sound.path, _ask(daemon, session, case)))

    run()


def _ask(daemon: Daemon, session: requests.Session, case: Any) -> int:
    endless = case.operation.path in ENDLESS
    answer = case.call(base_url=daemon.base_url, session=session, timeout=PATIENCE, stream=endless)
    code: int = answer.status_code
    if code >= 400 and NOT_OURS not in case.operation.path:
        case.validate_response(answer, checks=[response_schema_conformance])
        _in_its_form(case, code, answer.content)
    return code


def _in_its_form(case: Any, code: int, body: bytes) -> None:
    document = json.loads(body)
    api = api_of(case.operation.path)
    error = document["error"]
    if api is Api.OLLAMA:
        assert isinstance(error, str), document
    elif api is Api.ANTHROPIC:
        assert {"type", "message"} <= error.keys(), document
    else:
        assert {"message", "type", "param", "code"} <= error.keys(), document
        assert error["code"] != "internal_error", document
    assert code != 500 or "internal" not in body.decode(), document
