"""What must not change a verdict, and what must never raise."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.contract import Blame, ExitEvidence, FailureKind, Verdict
from engines.evidence import classify
from supervisor.cli.recorded_exits import read_records

_FILE = Path(__file__).parents[2] / "data" / "failures" / "recorded.jsonl"
_RECORDED = read_records(_FILE)
_ACCEPTED = [
    {(answer["failure_kind"], answer["blames"]) for answer in [expect, *expect.get("also_ok", [])]}
    for expect in (json.loads(line)["expect"] for line in _FILE.read_text(encoding="utf-8").splitlines())
]
_CASES = list(zip(_RECORDED, _ACCEPTED, strict=True))

_WORDS = st.sampled_from(
    [
        *("error: ", "CUDA error: ", "failed to allocate ", "out of memory", "what():  ", "vk::", "Error", "dyld[1]: "),
        *("terminate called after throwing an instance of '", "GGML_ASSERT(", "/a/b.cpp:1: ", "[ERROR] x.cpp:1 - "),
        *("0.00.000.001 E ", "Traceback", "OSError: [Errno ", "99999999999999999999]", "\x1b[31m", "\r", "\x00", "é"),
        *("(", ")", " buffer of size 1", "ggml_abort", "oom-kill", "Killed process 1 (", "kernel: ", "Xid (a): 79"),
        *("couldn't bind HTTP server socket, hostname: ", ", port: 1", "died: ", "KeyError: "),
    ]
)
_LINES = st.one_of(st.text(max_size=80), st.lists(_WORDS, max_size=6).map("".join))
_NUMBERS = st.one_of(st.none(), st.integers(), st.integers(-200, 300))
_EVIDENCE = st.builds(
    ExitEvidence,
    engine=st.one_of(st.sampled_from(["llama.cpp", "stable-diffusion.cpp", "mlx", "mlx_lm", ""]), st.text(max_size=8)),
    argv=st.lists(st.one_of(_LINES, st.sampled_from(["--host", "--port", "-ngl", "x.sock", "65536"])), max_size=6).map(
        tuple
    ),
    platform=st.one_of(st.sampled_from(["linux", "macos", "windows"]), st.text(max_size=5)),
    exit_code=_NUMBERS,
    signal=_NUMBERS,
    spawn_errno=_NUMBERS,
    spawn_error=st.one_of(st.none(), _LINES),
    elapsed_seconds=st.one_of(st.none(), st.floats()),
    reached_ready=st.booleans(),
    stopped_by_supervisor=st.booleans(),
    asked_to_stop=st.booleans(),
    log=st.lists(_LINES, max_size=12).map(tuple),
    host_hints=st.lists(_LINES, max_size=4).map(tuple),
)


@given(_EVIDENCE)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_absurd_evidence_never_raises(evidence: ExitEvidence) -> None:
    """Empty logs, unknown engines, numbers out of range, control characters: there is always a verdict."""
    verdict = classify(evidence)
    assert isinstance(verdict, Verdict)
    assert verdict.why


def test_nothing_known_is_unknown() -> None:
    """No log, no code: nobody is blamed."""
    verdict = classify(ExitEvidence(engine="something else"))
    assert (verdict.kind, verdict.blames) == (FailureKind.UNKNOWN, Blame.NOBODY)


@given(st.sampled_from(_RECORDED), st.integers(0, 9), st.sampled_from(["/data/my models/", "C:\\m\\", "/é/"]))
@settings(max_examples=300, deadline=None)
def test_names_and_numbers_do_not_decide(evidence: ExitEvidence, device: int, folder: str) -> None:
    """Other folders, other devices, other times, colours and line ends: the same kind and blame."""

    def other(line: str) -> str:
        line = re.sub(r"^\d+\.\d\d\.\d{3}\.\d{3} ", "71.02.003.004 ", line).replace("/models/", folder)
        line = re.sub(r"\b(CUDA|ROCm|Vulkan|SYCL)\d", rf"\g<1>{device}", line)
        return re.sub(r"(\.cpp|\.cuh?|\.hpp?|\.c):\d+", rf"\1:{device + 1}", line)

    before = classify(evidence)
    for decorate in ("{}", "{}\r", "\x1b[31m{}\x1b[0m"):
        log = tuple(decorate.replace("{}", other(line)) for line in evidence.log)
        after = classify(replace(evidence, log=log))
        assert (after.kind, after.blames) == (before.kind, before.blames)


@given(st.sampled_from(_RECORDED), st.data())
@settings(max_examples=300, deadline=None)
def test_a_models_words_do_not_decide(evidence: ExitEvidence, data: st.DataObject) -> None:
    """Debug and information lines may carry any text; more of them anywhere change nothing."""
    alarming = data.draw(st.sampled_from([line for other in _RECORDED[::7] for line in other.log[-3:] if line]))
    prefix = {"llama.cpp": "0.20.001.110 D ", "stable-diffusion.cpp": "[DEBUG] x.cpp:1 - "}.get(
        evidence.engine, "2026-01-01 10:00:00,000 - DEBUG - "
    )
    log = list(evidence.log)
    for _ in range(3):
        log.insert(data.draw(st.integers(0, len(log))), prefix + "Parsed message: " + alarming.replace("\r", " "))
    before, after = classify(evidence), classify(replace(evidence, log=tuple(log)))
    assert (after.kind, after.blames) == (before.kind, before.blames)


@given(st.sampled_from(_CASES), st.data())
@settings(max_examples=400, deadline=None)
def test_lines_may_arrive_swapped(case: tuple[ExitEvidence, set[tuple[str, str]]], data: st.DataObject) -> None:
    """The engines' loggers are asynchronous: neighbours before readiness may change places."""
    evidence, accepted = case
    log = list(evidence.log)
    if evidence.reached_ready or len(log) < 2:
        return
    for place in data.draw(st.lists(st.integers(0, len(log) - 2), max_size=8)):
        log[place], log[place + 1] = log[place + 1], log[place]
    verdict = classify(replace(evidence, log=tuple(log)))
    assert (verdict.kind.value, verdict.blames.value) in accepted


@given(st.sampled_from(_CASES), st.data())
@settings(max_examples=400, deadline=None)
def test_a_log_without_its_beginning_still_tells(
    case: tuple[ExitEvidence, set[tuple[str, str]]], data: st.DataObject
) -> None:
    """A tail holds less, but what it leaves out in front of the deciding line is not missed."""
    evidence, accepted = case
    quoted = classify(evidence).why.rpartition("the log says: ")
    if not quoted[1]:
        return
    deciding = max((at for at, line in enumerate(evidence.log) if quoted[2][:40] in " ".join(line.split())), default=0)
    cut = data.draw(st.integers(0, deciding))
    verdict = classify(replace(evidence, log=evidence.log[cut:]))
    assert (verdict.kind.value, verdict.blames.value) in accepted


def test_a_flood_is_not_read() -> None:
    """Of a million lines only the tail is looked at."""
    flood = ("0.00.001.000 E srv  update_slots: decode() failed: x",) * 100_000
    log = (*flood, "0.00.002.000 E llama_model_load: error loading model: read error: Input/output error")
    assert classify(ExitEvidence("llama.cpp", exit_code=1, log=log)).kind is FailureKind.MODEL_UNREADABLE
