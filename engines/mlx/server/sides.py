"""Everything that is no generation: health, models, tokens, vectors, metrics, and what an operator asks."""

from __future__ import annotations

import functools
from typing import Any

import orjson
from aiohttp import web

from engines.mlx.server.chat_checks import read_chat
from engines.mlx.server.checks import members_of, read_prompts
from engines.mlx.server.fields import Fields
from engines.mlx.server.memory import memory_document
from engines.mlx.server.metrics import metrics_text
from engines.mlx.server.problems import RequestError, too_long
from engines.mlx.server.routes import read_json
from engines.mlx.server.service import Service

FLUSH_SECONDS = 30.0


def json_answer(document: Any, status: int = 200) -> web.Response:
    """A document as an answer."""
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")


class Sides:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _: web.Request) -> web.Response:
        """200 once the model is there; 503 before, and when the engine is broken."""
        self._service.ready()
        return json_answer({"status": "ok"})

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        self._service.ready()
        facts = self._service.engine.engine.loaded.facts
        about = {
            "n_ctx": facts.context,
            "n_ctx_train": facts.trained,
            "n_vocab": facts.vocabulary,
            "size": facts.parameters,
            **facts.details,
        }
        model = {"id": self._service.options.alias, "object": "model", "owned_by": "enginehouse", "meta": about}
        return json_answer({"object": "list", "data": [model]})

    async def slots(self, _: web.Request) -> web.Response:
        """As many rows as answers are computed together, and which of them are at work."""
        self._service.ready()
        busy, count = self._service.answering, self._service.options.parallel
        context = self._service.engine.engine.loaded.facts.context
        rows = [{"id": place, "n_ctx": context, "is_processing": place < busy} for place in range(max(count, busy))]
        return json_answer(rows)

    async def tokenize(self, request: web.Request) -> web.Response:
        """``content`` in tokens; ``add_special``: with the marks that begin a prompt."""
        self._service.ready()
        fields = Fields(_object(await read_json(self._service, request)))
        content = fields.text("content")
        if content is None:
            raise fields.wrong("content", "must be a string")
        marks = fields.flag("add_special")
        tokens = await self._service.in_words(self._service.prompter.tokens, content, marks=marks)
        return json_answer({"tokens": tokens})

    async def detokenize(self, request: web.Request) -> web.Response:
        """The text of ``tokens``."""
        self._service.ready()
        limits = self._service.limits
        fields = Fields(_object(await read_json(self._service, request)))
        (tokens,) = [()] if fields.raw("tokens") == [] else read_prompts(fields, "tokens", limits.vocabulary)
        if isinstance(tokens, str):
            raise fields.wrong("tokens", "must be a list of tokens")
        text = await self._service.in_words(self._service.prompter.text, list(tokens))
        return json_answer({"content": text})

    async def apply_template(self, request: web.Request) -> web.Response:
        """A chat as the text that the model reads."""
        self._service.ready()
        chat = read_chat(Fields(_object(await read_json(self._service, request))))
        return json_answer({"prompt": await self._service.in_words(self._service.prompter.render, chat)})

    async def embeddings(self, request: web.Request) -> web.Response:
        """Vectors of texts."""
        service = self._service
        service.ready()
        facts, limits = service.engine.engine.loaded.facts, service.limits
        if facts.embeds is None:
            raise RequestError(
                "this server does not give embeddings: start it with `--embeddings` and a model that can.",
                status=501,
                kind="not_supported_error",
            )
        fields = Fields(members_of(await read_json(service, request), limits))
        if fields.integer("dimensions", 1, facts.embeds) not in {None, facts.embeds}:
            raise fields.wrong("dimensions", f"must be left out, or {facts.embeds}, which is what the model gives")
        form = fields.raw("encoding_format")
        if form not in {None, "float", "base64"}:
            raise fields.wrong("encoding_format", "must be float or base64")
        rows, read = [], 0
        for place, prompt in enumerate(read_prompts(fields, "input", limits.vocabulary)):
            tokens = await service.in_words(service.prompter.prompt, prompt)
            if len(tokens) > facts.context:
                raise too_long(len(tokens), facts.context)
            vector = await service.engine.call(functools.partial(_embed, tokens=tokens))
            rows.append({"object": "embedding", "index": place, "embedding": _encoded(vector, form)})
            read += len(tokens)
        usage = {"prompt_tokens": read, "total_tokens": read}
        return json_answer({"object": "list", "model": service.options.alias, "data": rows, "usage": usage})

    async def metrics(self, _: web.Request) -> web.Response:
        """Sums since the start, as Prometheus reads them."""
        return web.Response(text=metrics_text(self._service), content_type="text/plain")

    async def cache(self, _: web.Request) -> web.Response:
        """What is kept for later prompts."""
        self._service.ready()
        return json_answer(await self._service.engine.call(_cache_document))

    async def change_cache(self, request: web.Request) -> web.Response:
        """``{"action": "flush"}``: save it to disk; ``{"action": "clear"}``: drop it, there too."""
        self._service.ready()
        fields = Fields(_object(await read_json(self._service, request)))
        action = fields.raw("action")
        if action not in {"flush", "clear"}:
            raise fields.wrong("action", "must be flush or clear")
        saved = await self._service.engine.call(_flush if action == "flush" else _clear)
        return json_answer({"saved": saved, **await self._service.engine.call(_cache_document)})

    async def memory(self, _: web.Request) -> web.Response:
        """What MLX holds."""
        return json_answer(memory_document(self._service))


def _embed(engine: Any, tokens: tuple[int, ...]) -> list[float]:
    vector: list[float] = engine.embed(tokens)
    return vector


def _cache_document(engine: Any) -> dict[str, Any]:
    document: dict[str, Any] = engine.cache_document()
    return document


def _flush(engine: Any) -> int:
    return int(engine.flush(FLUSH_SECONDS))


def _clear(engine: Any) -> int:
    engine.forget()
    return 0


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object.")
    return body


def _encoded(vector: list[float], form: str | None) -> Any:
    if form != "base64":
        return vector
    import base64  # noqa: PLC0415  used here alone
    import struct  # noqa: PLC0415

    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
