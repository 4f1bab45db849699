"""Generation over HTTP: chats and completions, streamed and whole."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from engines.mlx.server.asked import Asked
from engines.mlx.server.checks import read_chat_request, read_completion_request
from engines.mlx.server.frames import Answer, error_frame
from engines.mlx.server.problems import RequestError
from engines.mlx.server.service import PLAIN, Form, Running, Service
from engines.mlx.server.whole import WholeAnswer

SESSION_HEADER = "x-session-id"
_LARGE = 1 << 20
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


async def read_json(service: Service, request: web.Request) -> Any:
    """The body; a large one is parsed off the loop.

    Raises:
        RequestError: it is no JSON.
    """
    raw = await request.read()
    try:
        return await service.in_words(orjson.loads, raw) if len(raw) > _LARGE else orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error}") from error


class Generation:
    """The handlers of ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """A chat."""
        service = self._service
        service.ready()
        asked = read_chat_request(await read_json(service, request), service.limits)
        assert asked.chat is not None
        prompt = await service.in_words(service.prompter.chat, asked.chat)
        session = request.headers.get(SESSION_HEADER)
        return await self._answer(request, asked, [prompt.tokens], Form(prompt.thinking, prompt.matcher, session))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A text that is gone on with."""
        service = self._service
        service.ready()
        asked = read_completion_request(await read_json(service, request), service.limits)
        prompts = [await service.in_words(service.prompter.prompt, prompt) for prompt in asked.prompts]
        return await self._answer(request, asked, prompts)

    async def _answer(
        self, request: web.Request, asked: Asked, prompts: list[tuple[int, ...]], form: Form = PLAIN
    ) -> web.StreamResponse:
        with self._service.running(asked, prompts, form) as running:
            if asked.wishes.stream:
                return await self._stream(request, running)
            whole = WholeAnswer(asked, self._service.options.alias, running.choices)
            while not whole.complete:
                whole.add(await self._service.events(running))
            return web.json_response(body=orjson.dumps(whole.document()))

    async def _stream(self, request: web.Request, running: Running) -> web.StreamResponse:
        """A failure before the first byte is an answer of its own; after it, an event that ends the stream."""
        answer = Answer(running.asked, self._service.options.alias, running.choices)
        response = web.StreamResponse(headers=_HEADERS)
        begun = running.asked.wishes.progress
        if begun:
            await response.prepare(request)
        while not answer.complete:
            events = await self._service.events(running)
            try:
                frames = answer.frames(events)
            except RequestError as error:
                if not response.prepared:
                    raise
                await response.write(error_frame(error))
                break
            if frames:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(frames)
        await response.write_eof()
        return response
