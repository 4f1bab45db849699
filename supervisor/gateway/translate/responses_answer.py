"""From a chat's answer to OpenAI's response, whole or as its events. Pure: the same chunks give the same bytes.

The whole response is made by the same steps as the events, so that they can't differ. The last event is asked for
apart, after the response is stored: a client may name it in its next request as soon as it sees that event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from supervisor.gateway.translate.tool_calls import MARK
from supervisor.gateway.translate.usage import cached_tokens, tokens

_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


class ResponseEvents:
    """Makes the events, chunk by chunk, and the response itself.

    Args:
        response_id: such as ``resp_…``; the ids of items are made of it.
        created: seconds since 1970.
        body: the request, for what a response repeats of it.
        timing: what else there is to say in ``usage``, from the engine's timings.
    """

    def __init__(
        self, response_id: str, created: int, body: dict[str, Any], timing: Callable[[Any], dict[str, Any]]
    ) -> None:
        echoed = {key: body[key] if body.get(key) is not None else usual for key, usual in _ECHOED.items()}
        self._head = {"id": response_id, "object": "response", "created_at": created, "model": body.get("model")}
        self._echoed = echoed
        self._timing = timing
        self._items: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._kind: str | int | None = None
        self._number = 0
        self._finish: str | None = None
        self._mark: Any = None
        self._usage: Any = None
        self._timings: Any = None
        self.started = False

    def progress(self, report: dict[str, Any]) -> None:
        """Nothing is said of it."""

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events that this chunk makes."""
        made: list[bytes] = []
        if not self.started:
            self._start(chunk, made)
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("reasoning_content"):
                self._reason(delta["reasoning_content"], made)
            if delta.get("content"):
                self._say(delta["content"], made)
            for call in delta.get("tool_calls") or ():
                self._call(call, made)
            self._finish = choice.get("finish_reason") or self._finish
            self._mark = choice.get(MARK) or self._mark
        return b"".join(made)

    def end(self) -> bytes:
        """The events that end the last item; ``last`` has the one that ends the response."""
        made: list[bytes] = []
        if not self.started:
            self._start({}, made)
        self._close(made)
        return b"".join(made)

    def last(self) -> bytes:
        """The event that ends a response that is complete, or was cut by its limit."""
        response = self.response()
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, code: str, message: str) -> bytes:
        """The event that ends a response whose engine failed; before its first event there is only an error."""
        if not self.started:
            return self._event("error", code=code, message=message, param=None)
        error = {"code": code, "message": message}
        return self._event("response.failed", response={**self._as("failed"), "error": error})

    def response(self) -> dict[str, Any]:
        """The response, once its answer has ended."""
        cut = self._finish in {"length", "content_filter"}
        made = self._as("incomplete" if cut else "completed")
        if cut:
            reason = "max_output_tokens" if self._finish == "length" else "content_filter"
            made["incomplete_details"] = {"reason": reason}
        made["usage"] = self._counted()
        return {**made, MARK: self._mark} if self._mark else made

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The response that a whole chat answer makes."""
        [choice, *_] = answer["choices"]
        message = choice["message"]
        for key in ("reasoning_content", "content"):
            if message.get(key):
                self.feed({**answer, "choices": [{"delta": {key: message[key]}}]})
        calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls") or ())]
        self.feed({**answer, "choices": [{**choice, "delta": {"tool_calls": calls}}]})
        self.end()
        return self.response()

    def _as(self, status: str) -> dict[str, Any]:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(self._items),
            **self._echoed,
            "usage": None,
        }

    def _counted(self) -> dict[str, Any]:
        usage = self._usage
        asked, said = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
        cached = cached_tokens(usage)
        thought = any(item["type"] == "reasoning" for item in self._items)
        return {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": cached} if cached else {},
            "output_tokens": said,
            # Engines don't say how much of it was reasoning.
            "output_tokens_details": {} if thought else {"reasoning_tokens": 0},
            "total_tokens": asked + said,
            **self._timing(self._timings),
        }

    def _start(self, chunk: dict[str, Any], made: list[bytes]) -> None:
        self.started = True
        self._head["model"] = chunk.get("model") or self._head["model"]
        response = self._as("in_progress")
        made += [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def _reason(self, text: str, made: list[bytes]) -> None:
        if self._kind != "reasoning":
            self._close(made)
            self._open("reasoning", {"type": "reasoning", "id": self._new("rs"), "summary": []}, made)
            part = {"type": "summary_text", "text": ""}
            made.append(self._of_item("response.reasoning_summary_part.added", summary_index=0, part=part))
        self._texts.append(text)
        made.append(self._of_item("response.reasoning_summary_text.delta", summary_index=0, delta=text))

    def _say(self, text: str, made: list[bytes]) -> None:
        if self._kind != "message":
            self._close(made)
            item = {"type": "message", "id": self._new("msg"), "role": "assistant", "content": []}
            self._open("message", item, made)
            made.append(self._of_item("response.content_part.added", content_index=0, part=_part("")))
        self._texts.append(text)
        made.append(self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=[]))

    def _call(self, call: dict[str, Any], made: list[bytes]) -> None:
        at, function = call.get("index") or 0, call.get("function") or {}
        if self._kind != at:
            self._close(made)
            item = {"type": "function_call", "id": self._new("fc"), "call_id": call.get("id"), "arguments": ""}
            self._open(at, {**item, "name": function.get("name")}, made)
        if function.get("arguments"):
            self._texts.append(function["arguments"])
            made.append(self._of_item("response.function_call_arguments.delta", delta=function["arguments"]))

    def _new(self, prefix: str) -> str:
        return f"{prefix}_{str(self._head['id']).removeprefix('resp_')}_{len(self._items)}"

    def _open(self, kind: str | int, item: dict[str, Any], made: list[bytes]) -> None:
        self._kind = kind
        self._items.append({**item, "status": "in_progress"})
        made.append(self._event("response.output_item.added", output_index=len(self._items) - 1, item=self._items[-1]))

    def _close(self, made: list[bytes]) -> None:
        """End the item that is open; one that the limit cut says so."""
        if self._kind is None:
            return
        text = "".join(self._texts)
        item = {**self._items[-1], "status": "incomplete" if self._finish == "length" else "completed"}
        if self._kind == "reasoning":
            item["summary"] = [{"type": "summary_text", "text": text}]
            made += [
                self._of_item("response.reasoning_summary_text.done", summary_index=0, text=text),
                self._of_item("response.reasoning_summary_part.done", summary_index=0, part=item["summary"][0]),
            ]
        elif self._kind == "message":
            item["content"] = [_part(text)]
            made += [
                self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[]),
                self._of_item("response.content_part.done", content_index=0, part=_part(text)),
            ]
        else:
            item["arguments"] = text or "{}"
            done = {"name": item["name"], "arguments": item["arguments"]}
            made.append(self._of_item("response.function_call_arguments.done", **done))
        self._items[-1] = item
        made.append(self._event("response.output_item.done", output_index=len(self._items) - 1, item=item))
        self._kind = None
        self._texts = []

    def _of_item(self, kind: str, **facts: Any) -> bytes:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **facts)

    def _event(self, kind: str, **facts: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **facts})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
