"""llama-server's slots: a request is sent to one by ``id_slot``, and ``/slots/N`` saves, restores and erases it.

A restore may answer 200 and be of no use (with sliding windows, or recurrent layers): only ``cache`` in the progress of
the next prompt tells. With a projector both are refused. What a file holds is read by token, so a wrong one costs time,
and changes no answer, as long as model, build and the settings that shape the KV are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from engines.llama_cpp.extra_args import flag_of
from engines.llama_cpp.health import SLOTS_PATH
from engines.slots import PromptRead, SlotAnswer, SlotCall

if TYPE_CHECKING:
    from engines.contract import LaunchPlan

FOLDER_FLAG = "--slot-save-path"
_OK = 200
_NOT_IMPLEMENTED = 501
_MULTIMODAL = "multimodal"
_PROGRESS = b'"prompt_progress":'
# What changes neither a token's KV nor its form in a file. Any other flag counts, also one that nobody here knows.
_NO_MATTER = frozenset(
    {
        "--model",
        "--alias",
        "--threads",
        "-t",
        "--threads-batch",
        "-tb",
        "--threads-http",
        "--parallel",
        "-np",
        "--ctx-size",
        "-c",
        "--cache-ram",
        "-cram",
        "--verbosity",
        "-lv",
        "--jinja",
        "--no-webui",
        "--offline",
        "--no-warmup",
        "--fit",
        "--batch-size",
        "-b",
        "--kv-unified",
        "--no-kv-unified",
        FOLDER_FLAG,
    }
)
_SLOT_COUNT = frozenset({"--parallel", "-np"})


class LlamaCppSlots:
    """Implements ``Slots`` for ``llama-server``."""

    finds_itself: ClassVar[bool] = False
    uses_path: ClassVar[str | None] = SLOTS_PATH

    def pinned(self, payload: bytes, slot: int) -> bytes:
        """``id_slot`` as the last field: it wins over one before it."""
        return b'%b,"id_slot":%d}' % (payload[:-1], slot)

    def may_pin(self, plan: LaunchPlan) -> bool:
        """Unless the slots are counted by an extra argument, whose number the plan does not know."""
        return plan.slots > 0 and sum(1 for flag, _ in _flags(plan.argv) if flag in _SLOT_COUNT) == 1

    def keeps_text(self, body: Mapping[str, Any]) -> bool:
        """An adapter by request, or a KV that is shifted to fit, and nothing in a file tells it.

        Neither is anything used that is there already if the client does not want it (``cache_prompt``).
        """
        return not (body.get("lora") or body.get("n_cache_reuse") or body.get("cache_prompt") is False)

    def prompt_read(self, data: bytes) -> PromptRead | None:
        """``{"prompt_progress": {"total", "cache", "processed", "time_ms"}}`` of the first chunks."""
        if _PROGRESS not in data:
            return None
        try:
            progress = orjson.loads(data)["prompt_progress"]
            return PromptRead(int(progress["total"]), int(progress["cache"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return None

    def uses(self, body: bytes) -> Mapping[int, object]:
        """``id_task``: of the last one that a slot had; not there before the first. Saving and restoring are none.

        With a shared KV an idle slot may be cleared without a task.
        """
        try:
            rows = orjson.loads(body)
            return {int(row["id"]): (row.get("id_task"), row.get("n_prompt_tokens") == 0) for row in rows}
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            return {}

    def save(self, slot: int, name: str) -> SlotCall:
        """``POST /slots/N?action=save``."""
        return _call(slot, "save", name)

    def restore(self, slot: int, name: str) -> SlotCall:
        """``POST /slots/N?action=restore``."""
        return _call(slot, "restore", name)

    def read_answer(self, status: int, body: bytes) -> SlotAnswer:
        """``{"id_slot", "filename", "n_saved" | "n_restored", "n_written" | "n_read", "timings"}``, or an error."""
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        document = document if isinstance(document, dict) else {}
        if status == _OK:
            tokens = _whole(document, "n_saved", "n_restored")
            return SlotAnswer(tokens is not None, tokens, _whole(document, "n_written", "n_read"))
        error = document.get("error")
        said = error.get("message") if isinstance(error, dict) else None
        why = said if isinstance(said, str) else f"status {status}"
        never = status == _NOT_IMPLEMENTED or (status > _NOT_IMPLEMENTED - 1 and _MULTIMODAL in why)
        return SlotAnswer(done=False, never=never, why=why)

    def files_folder(self, plan: LaunchPlan) -> Path | None:
        """The value of ``--slot-save-path``, the last one where there are several."""
        found = [value for flag, value in _flags(plan.argv) if flag == FOLDER_FLAG and value is not None]
        return Path(found[-1]) if found else None

    def fingerprint(self, plan: LaunchPlan) -> tuple[str, ...] | None:
        """Build, context and KV type of the plan, its environment, and flags that are not known to be without effect.

        Any flag can be given by the environment too, as ``LLAMA_ARG_…``.

        A draft model has a KV of its own that no file holds.
        """
        flags = [(flag, value) for flag, value in _flags(plan.argv) if flag not in _NO_MATTER]
        if any("draft" in flag or flag == "-md" for flag, _ in flags):
            return None
        said = [word for flag, value in flags for word in (flag, value or "")]
        around = [word for name, value in sorted(plan.env.items()) for word in (name, value)]
        return (plan.engine.value, plan.fingerprint, str(plan.ctx_size), str(plan.cache_type), *said, *around)


def _call(slot: int, action: str, name: str) -> SlotCall:
    return SlotCall(f"/slots/{slot}?action={action}", orjson.dumps({"filename": name}))


def _whole(document: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each flag with its value: in one word, or in the next one where that is no flag."""
    for place, word in enumerate(argv):
        if not word.startswith("-") or _is_number(word):
            continue
        name, has_value, value = word.partition("=")
        following = argv[place + 1] if place + 1 < len(argv) else None
        separate = (
            following if following is not None and (not following.startswith("-") or _is_number(following)) else None
        )
        yield flag_of(name), value if has_value else separate


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
