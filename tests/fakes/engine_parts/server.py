"""Routes, slots and generation of the fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.fakes.engine_parts import answers, replies
from tests.fakes.engine_parts.answers import Generation, JsonObject, RequestError
from tests.fakes.engine_parts.faults import Faults
from tests.fakes.engine_parts.http import IDLE_SECONDS, REQUESTS_PER_CONNECTION, Reply, Request, read_request
from tests.fakes.engine_parts.log import Log
from tests.fakes.engine_parts.options import Options
from tests.fakes.engine_parts.slot_files import SlotFiles

_PUBLIC = {"/health", "/v1/health", "/models", "/v1/models", "/"}


@dataclass(slots=True)
class Slot:
    """One parallel sequence."""

    id: int
    task: int | None = None
    busy: bool = False
    prompt: list[str] = field(default_factory=list)
    processed: int = 0
    cached: int = 0
    decoded: int = 0
    remain: int = 0

    def describe(self, context: int) -> JsonObject:
        """The slot's row in ``/slots``; a slot that was never used has only the first four keys."""
        row: JsonObject = {"id": self.id, "n_ctx": context, "speculative": False, "is_processing": self.busy}
        if self.task is None:
            return row
        next_token = {"has_next_token": self.busy, "has_new_line": False}
        return {
            **row,
            "id_task": self.task,
            "n_prompt_tokens": len(self.prompt) + self.decoded,
            "n_prompt_tokens_processed": self.processed,
            "n_prompt_tokens_cache": self.cached,
            "next_token": [{**next_token, "n_remain": self.remain, "n_decoded": self.decoded}],
        }


@dataclass(slots=True)
class Totals:
    """What ``/metrics`` counts."""

    prompt_tokens: int = 0
    predicted_tokens: int = 0
    deferred: int = 0


class Cancelled(Exception):  # noqa: N818  an outcome, not an error
    """The client left where llama-server notices it."""


class Server:
    """Answers requests; ``answering`` is cleared while the engine hangs."""

    def __init__(self, options: Options, faults: Faults, log: Log) -> None:
        self._options = options
        self._faults = faults
        self._log = log
        self._key = os.environ.get("LLAMA_API_KEY", "")
        self._slots = [Slot(index) for index in range(max(1, options.parallel))]
        self._files = SlotFiles(options.slot_save_path, faults, self._end)
        self._waiting: list[object] = []
        self._tasks = 0
        self._totals = Totals()
        self._connections: dict[asyncio.StreamWriter, Reply | None] = {}
        self._frozen = asyncio.Event()
        self.ready = False
        self.stopping = False
        self.answering = asyncio.Event()
        self.answering.set()
        self._moving = asyncio.Event()
        self._moving.set()
        self.alias = options.aliases[0] if options.aliases else (options.model or "none")

    def die(self, stage: str) -> None:
        """End the process if it is to die at this stage."""
        if self._faults.die == stage:
            self._end()

    def _end(self) -> None:
        if self._faults.exit is not None:
            os._exit(self._faults.exit)
        number = self._faults.signal_number()
        if number == signal.SIGABRT:
            self._log.raw("/build/llama.cpp/ggml/src/ggml.c:1234: GGML_ASSERT(fake == real) failed")
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)

    def hang(self, stage: str) -> None:
        """From now on nothing is answered, if it is to hang at this stage; or no generation goes on."""
        if self._faults.hang == stage:
            self.answering.clear()
        if self._faults.stall == stage:
            self._moving.clear()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end has had enough of it."""
        self._connections[writer] = None
        try:
            for _ in range(REQUESTS_PER_CONNECTION):
                async with asyncio.timeout(IDLE_SECONDS):
                    request = await read_request(reader)
                if request is None:
                    return
                reply = self._connections[writer] = Reply(request, reader, writer)
                await self._answer(request, reply)
                self._connections[writer] = None
                if not reply.keep_alive or self.stopping:
                    return
        except (TimeoutError, ValueError, asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            del self._connections[writer]
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, request: Request, reply: Reply) -> None:
        await self.answering.wait()
        try:
            await self._route(request, reply)
        except RequestError as error:
            self._log.say("operator()", f"got exception: {json.dumps(error.body)}", level="W")
            await reply.send_json(error.status, error.body)

    async def _route(self, request: Request, reply: Reply) -> None:
        if not self.ready:
            await reply.send_json(503, answers.LOADING)
        elif request.path not in _PUBLIC and not self._authorized(request):
            self._log.say("operator()", "unauthorized: Invalid API Key", level="W")
            await reply.send_json(401, answers.BAD_KEY)
        elif request.method in {"GET", "HEAD"}:
            await self._get(request, reply)
        else:
            await self._post(request, reply)

    def _authorized(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return not self._key or self._key in {given, request.headers.get("x-api-key", "")}

    async def _get(self, request: Request, reply: Reply) -> None:
        documents: dict[str, Callable[[], object]] = {
            "/health": lambda: {"status": "ok"},
            "/v1/health": lambda: {"status": "ok"},
            "/v1/models": lambda: answers.models(self.alias, self._options.aliases, self._options.slot_context),
            "/models": lambda: answers.models(self.alias, self._options.aliases, self._options.slot_context),
            "/props": self._props,
            "/slots": self._slot_rows,
        }
        if request.path == "/metrics":
            await reply.send(200, "text/plain; version=0.0.4", self._metrics().encode())
        elif request.path in documents:
            with_body = request.method == "GET"
            await reply.send_json(200, documents[request.path](), with_body=with_body)
        else:
            await reply.send_json(404, answers.NOT_FOUND)

    async def _post(self, request: Request, reply: Reply) -> None:
        routes: dict[str, Callable[[JsonObject, Reply], Awaitable[None]]] = {
            "/v1/chat/completions": self._chat,
            "/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/v1/embeddings": self._embed,
            "/v1/rerank": self._rerank,
            "/tokenize": self._tokenize,
            "/apply-template": self._apply_template,
        }
        if request.path.startswith("/slots/") and request.method == "POST":
            await self._slot_file(request, reply)
            return
        if request.method != "POST" or request.path not in routes:
            await reply.send_json(404, answers.NOT_FOUND)
            return
        await routes[request.path](answers.parse_body(request.body), reply)

    async def _slot_file(self, request: Request, reply: Reply) -> None:
        number = request.path.removeprefix("/slots/")
        if not number.isdigit():
            raise RequestError(400, "Invalid slot ID", "invalid_request_error")
        slot = self._slots[int(number) % len(self._slots)]
        action = request.query.removeprefix("action=")
        await reply.send_json(200, await self._files.act(slot, action, answers.parse_body(request.body)))

    async def _chat(self, body: JsonObject, reply: Reply) -> None:
        await self._generate(chat=True, body=body, reply=reply)

    async def _complete(self, body: JsonObject, reply: Reply) -> None:
        await self._generate(chat=False, body=body, reply=reply)

    async def _embed(self, body: JsonObject, reply: Reply) -> None:
        if not self._options.embeddings:
            raise answers.not_supported("embeddings", "--embeddings")
        document = replies.embeddings(body, self.alias)
        slot = await self._take_slot(reply)
        if slot is None:
            return
        try:
            slot.prompt = []  # what a text to embed leaves there is of no use to others
            await asyncio.sleep(self._faults.prefill_delay)
        finally:
            self._release(slot)
        await reply.send_json(200, document)

    async def _rerank(self, body: JsonObject, reply: Reply) -> None:
        if not self._options.rerank:
            raise answers.not_supported("reranking", "--reranking")
        await reply.send_json(200, replies.rerank(body, self.alias))

    async def _apply_template(self, body: JsonObject, reply: Reply) -> None:
        await reply.send_json(200, {"prompt": replies.chat_prompt(body)})

    async def _tokenize(self, body: JsonObject, reply: Reply) -> None:
        pieces = answers.words(str(body.get("content", "")))
        tokens = [answers.token_id(piece) for piece in pieces]
        rows = [{"id": number, "piece": piece} for number, piece in zip(tokens, pieces, strict=True)]
        await reply.send_json(200, {"tokens": rows if body.get("with_pieces") else tokens})

    async def _generate(self, *, chat: bool, body: JsonObject, reply: Reply) -> None:
        asked = replies.start_generation(chat=chat, body=body, model=self.alias, faults=self._faults)
        self._check_context(asked)
        slot = await self._take_slot(reply, body.get("id_slot"))
        if slot is None:
            return
        try:
            self._log_launch(slot)
            if asked.stream:
                await reply.begin_stream()
                if len(asked.choices) > 1 and not chat:
                    await reply.send_event(None)
            await self._prefill(asked, slot, reply)
            ended = await self._decode(asked, slot, reply)
        except Cancelled:
            self._log.say("stop", f"cancel task, id_task = {slot.task}", level="W")
            return
        finally:
            self._release(slot)
        if not asked.stream:
            await reply.send_json(200, asked.whole())
        elif ended:
            await reply.send_event("[DONE]")
            await reply.end_stream()

    def _check_context(self, asked: Generation) -> None:
        limit = self._options.slot_context
        if asked.prompt_tokens > limit:
            message = (
                f"request ({asked.prompt_tokens} tokens) exceeds the available context size ({limit} tokens), "
                "try increasing it"
            )
            more = {"n_prompt_tokens": asked.prompt_tokens, "n_ctx": limit}
            raise RequestError(400, message, "exceed_context_size_error", **more)

    async def _take_slot(self, reply: Reply, wanted: object = None) -> Slot | None:
        """The first free slot, in order of arrival, or the ``wanted`` one; None if the client left meanwhile."""
        if isinstance(wanted, int) and wanted >= 0:
            slot = self._slots[wanted % len(self._slots)]
            while self.stopping or slot.busy:
                if reply.client_left:
                    return None
                await asyncio.sleep(0.005)
            return self._begin(slot)
        ticket = object()
        self._waiting.append(ticket)
        self._totals.deferred = len(self._waiting)
        try:
            while self.stopping or self._waiting[0] is not ticket or all(slot.busy for slot in self._slots):
                if reply.client_left:
                    return None
                await asyncio.sleep(0.01)
        finally:
            self._waiting.remove(ticket)
            self._totals.deferred = len(self._waiting)
        return self._begin(next(slot for slot in self._slots if not slot.busy))

    def _begin(self, slot: Slot) -> Slot:
        self._tasks += 1
        slot.busy, slot.task, slot.decoded = True, self._tasks, 0
        return slot

    def _release(self, slot: Slot) -> None:
        slot.busy = False
        said = f"id {slot.id:2} | task {slot.task} | stop processing: n_tokens = {slot.decoded}, truncated = 0"
        self._log.say("release", said, subsystem="slot")

    def _log_launch(self, slot: Slot) -> None:
        said = f"id {slot.id:2} | task {slot.task} | processing task, is_child = 0"
        self._log.say("launch_slot_", said, subsystem="slot")

    async def _prefill(self, asked: Generation, slot: Slot, reply: Reply) -> None:
        """Read the prompt batch by batch; only with progress reports is a client that left noticed between them."""
        prompt = asked.choices[0].prompt
        asked.cached = _common(slot.prompt, prompt) if asked.body.get("cache_prompt", True) else 0
        slot.prompt, slot.cached, slot.processed = prompt, asked.cached, 0
        if self._faults.poison is not None and self._faults.poison in "".join(prompt):
            self._end()
        begun, done = time.monotonic(), asked.cached
        if asked.progress:
            await reply.send_event(asked.progress_chunk(done, 0))
        while done < len(prompt):
            self.die("prefill")
            self.hang("prefill")
            await self._compute(self._faults.prefill_delay)
            if asked.progress and reply.client_left:
                raise Cancelled
            done = min(len(prompt), done + self._options.batch_size)
            slot.processed = done - asked.cached
            asked.prompt_seconds = time.monotonic() - begun
            if asked.progress:
                await reply.send_event(asked.progress_chunk(done, int(asked.prompt_seconds * 1000)))
        self._totals.prompt_tokens += slot.processed

    async def _decode(self, asked: Generation, slot: Slot, reply: Reply) -> bool:
        """Say the pieces, choices in turn; False if the stream was cut by a fault."""
        begun, sent = time.monotonic(), 0
        if asked.stream and asked.chat:
            for choice in asked.choices:
                await reply.send_event(asked.role_chunk(choice))
        for round_ in range(max(len(choice.pieces) for choice in asked.choices) + 1):
            for choice in asked.choices:
                if round_ == len(choice.pieces):
                    await self._finish(asked, choice, reply)
                if round_ >= len(choice.pieces):
                    continue
                if await self._cut(asked, reply, sent):
                    return False
                await self._compute(self._faults.chunk_delay)
                if asked.stream and reply.client_left:
                    raise Cancelled
                sent += 1
                choice.sent += 1
                slot.decoded, slot.remain = sent, len(choice.pieces) - choice.sent
                self._totals.predicted_tokens += 1
                asked.decode_seconds = time.monotonic() - begun
                if asked.stream:
                    await reply.send_event(asked.piece_chunk(choice, choice.pieces[round_]))
        return True

    async def _finish(self, asked: Generation, choice: answers.Choice, reply: Reply) -> None:
        if asked.stream:
            for chunk in asked.final_chunks(choice):
                await reply.send_event(chunk)

    async def _cut(self, asked: Generation, reply: Reply, sent: int) -> bool:
        """Let the faults of a stream strike when it is their turn."""
        if sent < self._faults.after_chunks:
            return False
        self.die("stream")
        self.hang("stream")
        if not (self._faults.truncate or self._faults.error):
            return False
        if self._faults.error:
            body = answers.error_body(500, "Compute error.", "server_error")
            if not asked.stream:
                raise RequestError(500, "Compute error.", "server_error")
            await reply.send_event(body)
            await reply.end_stream()
        reply.keep_alive = False
        return True

    async def _compute(self, seconds: float) -> None:
        """The engine at work: nothing moves while it hangs or once it has been told to stop."""
        await asyncio.sleep(seconds)
        await self.answering.wait()
        await self._moving.wait()
        if self.stopping:
            await self._frozen.wait()

    def client_left_everywhere(self) -> bool:
        """Whether no request is open any more, as llama-server waits for before it exits."""
        return all(reply is None or reply.client_left for reply in self._connections.values())

    def close_all(self) -> None:
        """Drop every connection."""
        for writer in tuple(self._connections):
            writer.close()

    def _slot_rows(self) -> list[JsonObject]:
        if not self._options.slots:
            raise answers.not_supported("slots endpoint", "--slots")
        return [slot.describe(self._options.slot_context) for slot in self._slots]

    def _props(self) -> JsonObject:
        return {
            "default_generation_settings": {"n_ctx": self._options.slot_context},
            "total_slots": len(self._slots),
            "model_alias": self.alias,
            "model_path": self._options.model,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": self._options.slots,
            "endpoint_metrics": self._options.metrics,
            "chat_template": "",
            "build_info": answers.FINGERPRINT,
            "is_sleeping": False,
        }

    def _metrics(self) -> str:
        if not self._options.metrics:
            raise answers.not_supported("metrics endpoint", "--metrics")
        values = (
            ("prompt_tokens_total", "counter", self._totals.prompt_tokens),
            ("tokens_predicted_total", "counter", self._totals.predicted_tokens),
            ("requests_processing", "gauge", sum(slot.busy for slot in self._slots)),
            ("requests_deferred", "gauge", self._totals.deferred),
        )
        return "".join(f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n" for name, kind, value in values)


def _common(held: list[str], prompt: list[str]) -> int:
    """Words that both begin with; one at least is computed. The mark of the beginning alone is not worth a word."""
    common = 0
    while common < min(len(held), len(prompt)) and held[common] == prompt[common]:
        common += 1
    return min(common, len(prompt) - 1) if common > 1 else 0
