"""The HTTP side: which path leads where, who may ask, and how errors look."""

from __future__ import annotations

import hmac
import logging
import os

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engines.mlx.server.problems import RequestError
from engines.mlx.server.routes import Generation
from engines.mlx.server.service import Service
from engines.mlx.server.sides import Sides, json_answer

API_KEY_VARIABLE = "ENGINEHOUSE_MLX_API_KEY"
_log = logging.getLogger(__name__)
_BODY_LIMIT = 64 * 2**20
_OPEN = frozenset({"/health"})


def make_site(service: Service) -> web.Application:
    """The application; its handlers are cancelled when their client leaves, if its runner says so."""
    app = web.Application(client_max_size=_BODY_LIMIT, middlewares=[_errors(service), _key()])
    generation, sides = Generation(service), Sides(service)
    app.add_routes(
        [
            web.get("/health", sides.health),
            web.get("/v1/models", sides.models),
            web.get("/slots", sides.slots),
            web.get("/metrics", sides.metrics),
            web.get("/admin/memory", sides.memory),
            web.get("/admin/cache", sides.cache),
            web.post("/admin/cache", sides.change_cache),
            web.post("/v1/chat/completions", generation.chat),
            web.post("/v1/completions", generation.complete),
            web.post("/v1/embeddings", sides.embeddings),
            web.post("/tokenize", sides.tokenize),
            web.post("/detokenize", sides.detokenize),
            web.post("/apply-template", sides.apply_template),
        ]
    )
    return app


def _errors(service: Service) -> Middleware:
    """Every error is a document of one form; a fault of ours ends the request that met it, and is logged."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            service.tally.refuse()
            return json_answer(error.body, error.status)
        except web.HTTPException as error:
            kind = "not_found_error" if error.status == web.HTTPNotFound.status_code else "invalid_request_error"
            return json_answer(RequestError(error.reason, status=error.status, kind=kind).body, error.status)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  see above
            _log.exception("a request failed by a fault of the server")
            failed = RequestError(f"the server failed at this request: {error!r}", status=500, kind="server_error")
            return json_answer(failed.body, failed.status)

    return middleware


def _key() -> Middleware:
    """Where the environment holds a key, only who sends it is answered, ``/health`` apart."""
    key = os.environ.pop(API_KEY_VARIABLE, "")

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if key and request.path not in _OPEN and not hmac.compare_digest(given.encode(), key.encode()):
            raise RequestError("the key is missing or wrong.", status=401, kind="authentication_error")
        return await handler(request)

    return middleware
