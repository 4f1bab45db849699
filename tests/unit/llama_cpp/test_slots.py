"""llama-server's slots: what it is asked, what its answers mean, and what a file depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from engines.llama_cpp.slots import LlamaCppSlots
from engines.slots import PromptRead, SlotAnswer
from tests.fakes.instances import launch_plan

_SLOTS = LlamaCppSlots()


def test_a_body_is_sent_to_its_slot() -> None:
    """The number wins over one that is there already."""
    assert orjson.loads(_SLOTS.pinned(b'{"model":"m","id_slot":7}', 3))["id_slot"] == 3


def test_calls_name_the_slot_the_action_and_the_file() -> None:
    """As b10068 takes them."""
    call = _SLOTS.save(2, "a.part")
    assert (call.path, orjson.loads(call.body)) == ("/slots/2?action=save", {"filename": "a.part"})
    assert _SLOTS.restore(0, "a.kv").path == "/slots/0?action=restore"


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (
            200,
            b'{"id_slot":0,"filename":"x","n_saved":342,"n_written":7885904}',
            SlotAnswer(done=True, tokens=342, size=7885904),
        ),
        (200, b'{"id_slot":0,"filename":"x","n_restored":0,"n_read":9}', SlotAnswer(done=True, tokens=0, size=9)),
        (200, b"what?", SlotAnswer(done=False)),
        (400, b'{"error":{"message":"Unable to restore slot"}}', SlotAnswer(done=False, why="Unable to restore slot")),
        (501, b"{}", SlotAnswer(done=False, never=True, why="status 501")),
        (
            500,
            b'{"error":{"message":"not supported by multimodal"}}',
            SlotAnswer(done=False, never=False, why="not supported by multimodal"),
        ),
    ],
)
def test_answers_are_understood(status: int, body: bytes, answer: SlotAnswer) -> None:
    """Done, failed, or never to be asked again."""
    found = _SLOTS.read_answer(status, body)
    assert (found.done, found.tokens, found.size) == (answer.done, answer.tokens, answer.size)
    if not answer.done and answer.why:
        assert found.why == answer.why


def test_the_first_progress_tells_what_the_slot_had() -> None:
    """Tokens of the prompt, and those that were there; anything else is none."""
    data = b'{"choices":[],"prompt_progress":{"total":356,"cache":355,"processed":355,"time_ms":0}}'
    assert _SLOTS.prompt_read(data) == PromptRead(356, 355)
    assert _SLOTS.prompt_read(b'{"prompt_progress":{"total":"x"}}') is None
    assert _SLOTS.prompt_read(b'{"choices":[]}') is None


def test_a_file_depends_on_what_shapes_the_kv_and_on_nothing_else() -> None:
    """Threads, names and places do not count; context, KV type, build and unknown flags do; drafts make it useless."""
    plan = replace(launch_plan(), argv=("--model", "/m.gguf", "--threads", "4", "--cache-type-k", "q8_0"))
    own = _SLOTS.fingerprint(plan)
    assert own == _SLOTS.fingerprint(replace(plan, argv=("--model", "/n.gguf", "-t", "2", "--cache-type-k", "q8_0")))
    for other in (
        replace(plan, ctx_size=99),
        replace(plan, fingerprint="other build"),
        replace(plan, cache_type="q4_0"),
        replace(plan, argv=(*plan.argv, "--lora", "/a.gguf")),
        replace(plan, argv=("--model", "/m.gguf", "--cache-type-k", "q4_0")),
    ):
        assert _SLOTS.fingerprint(other) != own
    assert _SLOTS.fingerprint(replace(plan, argv=(*plan.argv, "--model-draft", "/d.gguf"))) is None


def test_the_folder_and_the_slots_are_those_of_the_arguments() -> None:
    """The last folder wins; slots that extra arguments count are not the plan's."""
    plan = replace(launch_plan(), argv=("--parallel", "1", "--slot-save-path", "/a", "--slot-save-path=/b"))
    assert _SLOTS.files_folder(plan) == Path("/b")
    assert _SLOTS.may_pin(plan)
    assert not _SLOTS.may_pin(replace(plan, argv=(*plan.argv, "-np", "4")))
    assert _SLOTS.files_folder(launch_plan()) is None


@pytest.mark.parametrize("odd", [{"lora": [{"id": 0, "scale": 1.0}]}, {"n_cache_reuse": 256}, {"cache_prompt": False}])
def test_an_adapter_by_request_is_not_kept(odd: dict[str, object]) -> None:
    """Its KV looks like any other's, as a shifted one does; who wants nothing used again proves nothing of a file."""
    assert _SLOTS.keeps_text({"messages": [], "cache_prompt": True})
    assert not _SLOTS.keeps_text({"messages": [], **odd})


def test_uses_of_slots_are_told_by_their_last_task() -> None:
    """As b10068 and b11434 list them: a fresh slot has none, one may be cleared; what is unreadable tells nothing."""
    body = b'[{"id":0,"is_processing":false,"id_task":11,"n_prompt_tokens":9},{"id":1,"is_processing":false}]'
    before, cleared = _SLOTS.uses(body), _SLOTS.uses(body.replace(b":9", b":0"))
    assert before[0] != cleared[0]
    assert before[1] == cleared[1]
    assert before[0] != _SLOTS.uses(body.replace(b"11", b"12"))[0]
    assert [_SLOTS.uses(body) for body in (b"", b"{}", b"[7]", b'{"error":{}}')] == [{}, {}, {}, {}]
