"""``/openapi.json``: what is mounted, read from the routes themselves, so that it can't say anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import orjson
from aiohttp import web

import supervisor
from supervisor.gateway.auth import Need, need_of
from supervisor.gateway.errors import Api, api_of

PATH = "/openapi.json"
_NAMES = re.compile(r"\{(\w+)\}")
_MARKS = re.compile(r"``([^`]*)``")
_EVERY = ("get", "post", "put", "patch", "delete")
# Fields that a body must have; docs/api.md says the rest.
_REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/v1/chat/completions": ("model", "messages"),
        "/v1/completions": ("model", "prompt"),
        "/v1/embeddings": ("model", "input"),
        "/v1/rerank": ("model", "query", "documents"),
        "/v1/reranking": ("model", "query", "documents"),
        "/v1/responses": ("model", "input"),
        "/v1/responses/input_tokens": ("model", "input"),
        "/v1/messages": ("model", "messages"),
        "/v1/messages/count_tokens": ("model", "messages"),
        "/api/chat": ("model",),
        "/api/generate": ("model",),
        "/api/embed": ("model", "input"),
        "/api/embeddings": ("model", "prompt"),
        "/api/show": ("model",),
    }
)
_TEXT = {"type": "string"}
_ERRORS: Mapping[Api, Mapping[str, Any]] = MappingProxyType(
    {
        Api.OPENAI: {"error": {"type": "object", "properties": dict.fromkeys(("message", "type", "code"), _TEXT)}},
        Api.ANTHROPIC: {
            "type": {"const": "error"},
            "error": {"type": "object", "properties": dict.fromkeys(("type", "message"), _TEXT)},
            "request_id": _TEXT,
        },
        Api.OLLAMA: {"error": _TEXT},
        Api.A1111: {
            "error": {"type": "object", "properties": dict.fromkeys(("message", "type", "code"), _TEXT)},
            "detail": _TEXT,
        },
    }
)


class OpenApi:
    """Serves the document; made once, from the routes of its own application."""

    def __init__(self) -> None:
        self._made: bytes | None = None

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [web.get(PATH, self.document)]

    async def document(self, request: web.Request) -> web.Response:
        """``GET /openapi.json``: this document."""
        if self._made is None:
            self._made = orjson.dumps(describe(request.app.router.routes()))
        return web.Response(body=self._made, content_type="application/json")


def describe(routes: Iterable[web.AbstractRoute]) -> dict[str, Any]:
    """The document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.resource is None or route.method == "HEAD":
            continue
        path = route.resource.canonical
        for method in _EVERY if route.method == "*" else (route.method.lower(),):
            paths.setdefault(path, {})[method] = _operation(path, method, route.handler.__doc__ or "")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Enginehouse", "version": supervisor.__version__},
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {_schema_of(api): {"type": "object", "properties": form} for api, form in _ERRORS.items()},
        },
    }


def _operation(path: str, method: str, doc: str) -> dict[str, Any]:
    api = api_of(path)
    form = {"schema": {"$ref": f"#/components/schemas/{_schema_of(Api.OPENAI if api is Api.RESPONSES else api)}"}}
    made: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method}{path}").strip("_"),
        "summary": _MARKS.sub(r"\1", doc.strip().partition("\n")[0]),
        "responses": {
            "200": {"description": "the answer"},
            "default": {"description": "what went wrong", "content": {"application/json": form}},
        },
    }
    if need_of(path) is not Need.NOTHING:
        made["security"] = [{"bearer": []}, {"key": []}, {}]  # the last: where no callers are configured
    names = _NAMES.findall(path)
    if names:
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]
    required = _REQUIRED.get(path)
    if required is not None and method == "post":
        fields: dict[str, Any] = {key: {} for key in required}
        fields["model"] = _TEXT
        schema = {"type": "object", "required": list(required), "properties": fields}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return made


def _schema_of(api: Api) -> str:
    return f"{api.value.capitalize()}Error"
