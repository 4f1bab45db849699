"""A1111's web API, as Open WebUI and others call it, below ``/sdapi/v1/``.

It knows one model at a time. Which one is kept for each caller: chosen by ``options``, or by a request's own
``override_settings``; else the first that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread
import orjson
from aiohttp import web

from engines.contract import Capability
from supervisor.errors import CallerError, ModelError
from supervisor.gateway.a1111_fields import named_model, notes_of, wish_of
from supervisor.gateway.exchange import Exchange, exchange_of
from supervisor.gateway.pictures.answers import image_facts
from supervisor.gateway.pictures.asking import Pictures
from supervisor.gateway.pictures.masks import Mask
from supervisor.gateway.pictures.sources import decode_text
from supervisor.gateway.pictures.wishes import wrong
from supervisor.gateway.ports import ModelCard
from supervisor.gateway.request_body import read_raw

_MODEL = "sd_model_checkpoint"
_MOST_CALLERS = 1000


class A1111Api:
    """Handlers; ``models`` are the rows of the listing."""

    def __init__(self, pictures: Pictures, models: Callable[[], Sequence[ModelCard]], body_limit: int) -> None:
        self._pictures = pictures
        self._models = models
        self._body_limit = body_limit
        self._chosen: dict[str, str] = {}

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        at = "/sdapi/v1/"
        return [
            web.post(f"{at}txt2img", self.draw),
            web.post(f"{at}img2img", self.change),
            web.get(f"{at}options", self.options),
            web.post(f"{at}options", self.choose),
            web.get(f"{at}sd-models", self.models),
            web.get(f"{at}samplers", self.samplers),
            web.get(f"{at}schedulers", self.schedulers),
            web.get(f"{at}loras", self.loras),
            web.get(f"{at}progress", self.progress),
            web.post(f"{at}interrupt", self.interrupt),
        ]

    async def draw(self, request: web.Request) -> web.Response:
        """``POST /sdapi/v1/txt2img``."""
        return await self._serve(request, await self._body(request), ())

    async def change(self, request: web.Request) -> web.Response:
        """``POST /sdapi/v1/img2img``."""
        body = await self._body(request)
        images = body.get("init_images")
        if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
            raise CallerError(
                "image_source_required", "`init_images` must hold a picture in base64.", param="init_images"
            )
        return await self._serve(request, body, images)

    async def options(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/options``: the model that draws, and nothing else that can be set."""
        return _json({_MODEL: self._model_of(exchange_of(request)), "samples_format": "png"})

    async def choose(self, request: web.Request) -> web.Response:
        """``POST /sdapi/v1/options``: another model from now on; other options are taken and mean nothing."""
        body = await self._body(request)
        exchange = exchange_of(request)
        name = body.get(_MODEL)
        if name is not None:
            if not isinstance(name, str):
                raise wrong(_MODEL, "must be a name from /sdapi/v1/sd-models")
            entry = await self._pictures.find(exchange, _bare(name), {})
            if len(self._chosen) >= _MOST_CALLERS:
                self._chosen.clear()
            self._chosen[exchange.caller.name] = entry.id
        return _json(None)

    async def models(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/sd-models``."""
        rows = [
            {
                "title": card.id,
                "model_name": card.id,
                "hash": None,
                "sha256": None,
                "filename": card.id,
                "config": None,
                "pictures": card.pictures,
            }
            for card in self._cards(exchange_of(request))
        ]
        return _json(rows)

    async def samplers(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/samplers``."""
        names = self._facts(exchange_of(request)).get("samplers", [])
        return _json([{"name": name, "aliases": [name], "options": {}} for name in names])

    async def schedulers(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/schedulers``."""
        names = self._facts(exchange_of(request)).get("schedulers", [])
        return _json([{"name": name, "label": name} for name in names])

    async def loras(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/loras``: ids, and no file of this machine."""
        rows = self._facts(exchange_of(request)).get("loras", [])
        return _json(
            [{"name": row["id"], "alias": row["name"], "metadata": {"purpose": row["purpose"]}} for row in rows]
        )

    async def progress(self, request: web.Request) -> web.Response:
        """``GET /sdapi/v1/progress``: of the caller's oldest picture that is not done."""
        running = self._pictures.jobs.running(exchange_of(request).caller.name)
        job = running[0] if running else None
        now = job.progress if job else None
        done = now.step / now.steps if now is not None and now.steps else 0.0
        state = {
            "skipped": False,
            "interrupted": False,
            "job": job.id if job else "",
            "job_count": len(running),
            "job_no": 0,
            "sampling_step": now.step if now else 0,
            "sampling_steps": now.steps if now else 0,
        }
        eta = (now.rest if now else None) or 0.0
        text = job.state if job else None
        return _json(
            {"progress": round(done, 4), "eta_relative": eta, "state": state, "current_image": None, "textinfo": text}
        )

    async def interrupt(self, request: web.Request) -> web.Response:
        """``POST /sdapi/v1/interrupt``: cancel all of the caller's pictures."""
        jobs = self._pictures.jobs
        for job in jobs.running(exchange_of(request).caller.name):
            jobs.cancel(job, "interrupted")
        return _json({})

    async def _serve(self, request: web.Request, body: dict[str, Any], images: Sequence[str]) -> web.Response:
        exchange = exchange_of(request)
        wish = wish_of(body, with_source=bool(images))
        named = named_model(body)
        name = self._model_of(exchange) if named is None else _bare(named)
        if name is None:
            raise ModelError("model_not_found", "No model that draws pictures is installed.")
        entry = await self._pictures.find(exchange, name, wish)
        sources = []
        for number, text in enumerate(images):
            where = f"init_images[{number}]"
            sources.append((where, await anyio.to_thread.run_sync(decode_text, text, where)))
        masked = await _mask(body) if images else None
        job = await self._pictures.begin(exchange, entry, wish, sources, masked)
        job.asked = replace(job.asked, notes=(*job.asked.notes, *notes_of(body, masked=masked is not None)))
        drawn = await self._pictures.jobs.wait(job)
        facts = image_facts(job, drawn)
        exchange.content_sent()
        info = {**facts, "prompt": job.asked.wish.prompt, "all_seeds": facts["seeds"], "infotexts": []}
        parameters = {key: value for key, value in body.items() if key not in {"init_images", "mask"}}
        return _json({"images": list(drawn.images), "parameters": parameters, "info": orjson.dumps(info).decode()})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        raw = await read_raw(request, self._body_limit)
        try:
            parsed = orjson.loads(raw) if raw else {}
        except orjson.JSONDecodeError as error:
            raise CallerError("invalid_json", f"The body is not valid JSON: {error}.") from error
        if not isinstance(parsed, dict):
            raise CallerError("invalid_request", "The body must be a JSON object.")
        return parsed

    def _cards(self, exchange: Exchange) -> list[ModelCard]:
        caller = exchange.caller
        return [
            card
            for card in self._models()
            if Capability.IMAGES in card.capabilities and card.broken is None and caller.sees(card.id, card.aliases)
        ]

    def _model_of(self, exchange: Exchange) -> str | None:
        cards = self._cards(exchange)
        chosen = self._chosen.get(exchange.caller.name)
        if chosen is not None and any(card.id == chosen for card in cards):
            return chosen
        return cards[0].id if cards else None

    def _facts(self, exchange: Exchange) -> dict[str, Any]:
        name = self._model_of(exchange)
        return next((dict(card.pictures or {}) for card in self._cards(exchange) if card.id == name), {})


async def _mask(body: dict[str, Any]) -> Mask | None:
    """What is painted, or bright, is drawn anew, unless ``inpainting_mask_invert`` says the other way round."""
    text = body.get("mask")
    if not isinstance(text, str) or not text:
        return None
    data = await anyio.to_thread.run_sync(decode_text, text, "mask")
    return Mask(data, painted=True, inverted=bool(body.get("inpainting_mask_invert")))


def _bare(name: str) -> str:
    """A1111's titles end in a hash: ``model.safetensors [0123abcd]``."""
    return name.partition(" [")[0]


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
