"""OpenAI's images API, with jobs beside it: ``/v1/images/generations``, ``/edits``, ``/jobs`` and links to pictures."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from supervisor.errors import CallerError
from supervisor.gateway.client_stream import ClientStream
from supervisor.gateway.exchange import exchange_of
from supervisor.gateway.pictures.answers import image_facts, job_document
from supervisor.gateway.pictures.asking import Pictures
from supervisor.gateway.pictures.drawing import Drawn
from supervisor.gateway.pictures.jobs import Job
from supervisor.gateway.pictures.links import PATH, Links
from supervisor.gateway.pictures.masks import Mask
from supervisor.gateway.pictures.sources import decode_text
from supervisor.gateway.pictures.wishes import wrong
from supervisor.gateway.request_body import read_body
from supervisor.gateway.request_options import take_keep_alive
from supervisor.units import format_size

_MOST_PARTS = 64
_LONGEST_FIELD = 64 * 1024
_PIECE_BYTES = 256 * 1024
# What OpenAI's models do and those here don't: said rather than ignored, where it would change what comes back.
_REFUSED = {
    "stream": "pictures are not streamed: POST /v1/images/jobs, whose events tell how far it is",
    "partial_images": "there are no partial pictures: POST /v1/images/jobs, whose events tell how far it is",
}
# What aiohttp raises for forms that are badly written: an encoding that there isn't, headers that never end …
_UNREADABLE = (ValueError, LookupError, AssertionError, RuntimeError, web.HTTPException, HttpProcessingError)
_NO_PICTURE = "must be a picture in base64, or a data: URL"
_OPAQUE = frozenset({None, "auto", "opaque"})


@dataclass(slots=True)
class _Form:
    """A request's fields, and the pictures that came with it, each with the name of its field."""

    model: str
    body: dict[str, Any]
    sources: list[tuple[str, bytes]] = field(default_factory=list)
    mask: Mask | None = None


class ImagesApi:
    """Handlers of requests for pictures."""

    def __init__(self, pictures: Pictures, links: Links, body_limit: int) -> None:
        self._pictures = pictures
        self._jobs = pictures.jobs
        self._links = links
        self._body_limit = body_limit

    def routes(self) -> list[web.RouteDef]:
        """What to mount."""
        return [
            web.post("/v1/images/generations", self.generate),
            web.post("/v1/images/edits", self.edit),
            web.post("/v1/images/jobs", self.begin),
            web.get("/v1/images/jobs/{id}", self.job),
            web.delete("/v1/images/jobs/{id}", self.cancel),
            web.get("/v1/images/jobs/{id}/events", self.events),
            web.get(PATH + "{name}", self.linked),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/images/generations``."""
        return await self._now(request, await self._json(request))

    async def edit(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/images/edits``: a form with ``image`` or ``image[]``, or JSON with ``images`` in base64."""
        form = await self._any(request)
        if not form.sources:
            raise CallerError(
                "image_source_required", "Send the picture that is to be changed as `image`.", param="image"
            )
        return await self._now(request, form)

    async def begin(self, request: web.Request) -> web.Response:
        """``POST /v1/images/jobs``: as the two above, and answered at once."""
        job = await self._begin(request, await self._any(request))
        return _answer(job_document(job), status=202)

    async def job(self, request: web.Request) -> web.Response:
        """``GET /v1/images/jobs/{id}``, with the pictures when they are done."""
        job = self._job_of(request)
        shown = job_document(job)
        if job.result is not None:
            shown["result"] = await self._document(request, job, job.result, {})
        return _answer(shown)

    async def cancel(self, request: web.Request) -> web.Response:
        """``DELETE /v1/images/jobs/{id}``; a job that is over stays as it is."""
        job = self._job_of(request)
        self._jobs.cancel(job, "as asked")
        return _answer(job_document(job))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/images/jobs/{id}/events``: its states from the first to the last, as server-sent events."""
        job = self._job_of(request)
        client = ClientStream(request, exchange_of(request))
        async for event in self._jobs.events(job):
            await client.send(event)
        return await client.finish()

    async def linked(self, request: web.Request) -> web.Response:
        """``GET /v1/images/files/{name}``: whoever has the link sees the picture."""
        found = self._links.get(request.match_info["name"])
        headers = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
        return web.Response(body=found.data, content_type=found.content_type, headers=headers)

    def _job_of(self, request: web.Request) -> Job:
        return self._jobs.find(request.match_info["id"], exchange_of(request).caller.name)

    async def _now(self, request: web.Request, form: _Form) -> web.Response:
        as_links = form.body.get("response_format")
        if as_links not in (None, "b64_json", "url"):
            raise wrong("response_format", "must be b64_json or url")
        job = await self._begin(request, form)
        drawn = await self._jobs.wait(job)
        exchange_of(request).content_sent()
        return _answer(await self._document(request, job, drawn, form.body))

    async def _begin(self, request: web.Request, form: _Form) -> Job:
        for name, why in _REFUSED.items():
            if form.body.get(name) not in (None, False, 0, "false", "0"):
                raise wrong(name, f"is not served: {why}")
        if form.body.get("background") not in _OPAQUE:
            raise wrong("background", "must be opaque or auto: models here draw the whole picture")
        exchange = exchange_of(request)
        keep_alive = take_keep_alive(request.headers, form.body)
        entry = await self._pictures.find(exchange, form.model, form.body)
        return await self._pictures.begin(exchange, entry, form.body, form.sources, form.mask, keep_alive)

    async def _document(self, request: web.Request, job: Job, drawn: Drawn, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of OpenAI's, with how it was made beside it."""
        wish = job.asked.wish
        facts = image_facts(job, drawn)
        if body.get("response_format") == "url":
            base = f"{request.scheme}://{request.host}"
            data = await anyio.to_thread.run_sync(lambda: [b64decode(image) for image in drawn.images])
            rows = [{"url": base + self._links.add(image, wish.output_format)} for image in data]
        else:
            rows = [{"b64_json": image} for image in drawn.images]
        return {
            "created": int(job.created),
            "data": rows,
            "background": "opaque",
            "output_format": wish.output_format,
            "size": f"{facts['width']}x{facts['height']}",
            **facts,
        }

    async def _any(self, request: web.Request) -> _Form:
        if request.content_type == "multipart/form-data":
            return await self._multipart(request)
        return await self._json(request)

    async def _json(self, request: web.Request) -> _Form:
        body = await read_body(request, self._body_limit)
        form = _Form(body.model, body.json)
        images = body.json.pop("images", None)
        if not isinstance(body.json.get("image"), str | list | None):
            raise wrong("image", _NO_PICTURE)
        listed = images if images is not None else body.json.pop("image", None)
        for number, picture in enumerate(listed if isinstance(listed, list) else [listed] if listed else ()):
            text = picture.get("image_url") if isinstance(picture, dict) else picture
            where = f"images[{number}]"
            if not isinstance(text, str):
                raise wrong(where, _NO_PICTURE)
            form.sources.append((where, await anyio.to_thread.run_sync(decode_text, text, where)))
        mask = body.json.pop("mask", None)
        mask = mask.get("image_url", mask) if isinstance(mask, dict) else mask
        if not isinstance(mask, str | None):
            raise wrong("mask", _NO_PICTURE)
        if mask:
            form.mask = Mask(await anyio.to_thread.run_sync(decode_text, mask, "mask"))
        return form

    async def _multipart(self, request: web.Request) -> _Form:
        """A form's parts, all of them within the longest body.

        Raises:
            CallerError: ``body_too_large``, ``invalid_request``, ``model_missing``.
        """
        form = _Form("", {})
        try:
            async for name, value in _parts(request, self._body_limit):
                _take_part(form, name, value)
        except _UNREADABLE as error:
            raise CallerError("invalid_request", "The form can't be read: it is cut short or badly written.") from error
        model = form.body.get("model")
        if not isinstance(model, str) or not model:
            raise CallerError("model_missing", "Say which model: the form needs `model`, a name from /v1/models.")
        form.model = model
        return form


async def _parts(request: web.Request, limit: int) -> AsyncIterator[tuple[str, bytes]]:
    """Name and bytes of each part of a form; all of them are at most ``limit`` bytes."""
    reader = await request.multipart()
    left = limit
    for _ in range(_MOST_PARTS):
        part = await reader.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise ValueError("a form within a form")  # noqa: TRY004  of the client's form, not of a caller's type
        pieces = []
        while piece := await part.read_chunk(_PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                said = f"The form is larger than {format_size(limit)}, the most that is taken."
                raise CallerError("body_too_large", said)
            pieces.append(piece)
        if part.name:
            yield part.name, bytes(part.decode(b"".join(pieces)))
    raise ValueError("too many parts")


def _take_part(form: _Form, name: str, value: bytes) -> None:
    if name in {"image", "image[]"} or name.startswith("image["):
        form.sources.append((f"image[{len(form.sources)}]", value))
    elif name == "mask":
        form.mask = Mask(value)
    elif len(value) > _LONGEST_FIELD:
        raise ValueError("a field is too long")
    else:
        text = value.decode()
        if name in {"loras", "loras[]"}:
            form.body.setdefault("loras", []).extend(_ids(text))
        else:
            form.body[name] = text


def _ids(text: str) -> list[Any]:
    """Ids in a form: one, or a JSON list."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError("loras can't be read") from error
    return parsed if isinstance(parsed, list) else [parsed]


def _answer(document: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json", status=status)
