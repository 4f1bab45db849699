"""The recorded exits of three engines, most of them provoked for real: each has to get an answer that is right."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere, Verdict
from engines.evidence import classify
from supervisor.cli.recorded_exits import read_records

_FILE = Path(__file__).parents[2] / "data" / "failures" / "recorded.jsonl"


@pytest.fixture(scope="module")
def recorded() -> list[tuple[dict[str, Any], ExitEvidence]]:
    """Each record with its evidence."""
    documents = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    return list(zip(documents, read_records(_FILE), strict=True))


def _accepted(document: dict[str, Any]) -> set[tuple[FailureKind, Blame]]:
    expect = document["expect"]
    return {
        (FailureKind(answer["failure_kind"]), Blame(answer["blames"]))
        for answer in [expect, *expect.get("also_ok", [])]
    }


def test_every_recorded_exit_is_understood(recorded: list[tuple[dict[str, Any], ExitEvidence]]) -> None:
    """Kind and blame are the expected pair, or one of those that nothing in the record tells apart."""
    wrong = []
    for document, evidence in recorded:
        verdict = classify(evidence)
        if (verdict.kind, verdict.blames) not in _accepted(document):
            wrong.append(f"{document['id']}: {verdict}")
    assert len(recorded) == 332
    assert wrong == []


def test_most_answers_are_the_first_choice(recorded: list[tuple[dict[str, Any], ExitEvidence]]) -> None:
    """The alternatives are for what can't be known; the expected pair itself is met in 19 of 20 records."""
    hits = 0
    for document, evidence in recorded:
        verdict = classify(evidence)
        hits += (verdict.kind.value, verdict.blames.value) == (
            document["expect"]["failure_kind"],
            document["expect"]["blames"],
        )
    assert hits >= 0.95 * len(recorded)


def test_runs_here_follows_from_the_phase_and_the_kind(recorded: list[tuple[dict[str, Any], ExitEvidence]]) -> None:
    """Whatever got ready runs here; a build that could not be loaded does not; a bad model shows that it ran."""
    wrong = []
    for document, evidence in recorded:
        verdict = classify(evidence)
        if evidence.asked_to_stop:
            continue
        if evidence.reached_ready and verdict.runs_here is not RunsHere.YES:
            wrong.append((document["id"], verdict))
        if not evidence.reached_ready and not _fits(verdict):
            wrong.append((document["id"], verdict))
    assert wrong == []


def _fits(verdict: Verdict) -> bool:
    """Before readiness: what the kind allows."""
    if verdict.kind in {FailureKind.INCOMPATIBLE_CPU, FailureKind.INCOMPATIBLE_DRIVER}:
        return verdict.runs_here is RunsHere.NO
    if verdict.kind in {FailureKind.MODEL_UNREADABLE, FailureKind.MODEL_UNSUPPORTED, FailureKind.ADDRESS_IN_USE}:
        return verdict.runs_here is not RunsHere.NO
    if verdict.kind in {FailureKind.CRASH, FailureKind.ENGINE_ASSERT, FailureKind.DEVICE_LOST, FailureKind.KILLED}:
        return verdict.runs_here is RunsHere.UNKNOWN
    return True


def test_every_answer_has_a_sentence(recorded: list[tuple[dict[str, Any], ExitEvidence]]) -> None:
    """The owner is told what it means, in one line that fits a screen."""
    for document, evidence in recorded:
        why = classify(evidence).why
        assert 20 < len(why) < 400, document["id"]
        assert "\n" not in why
        assert why[0].isupper()


def test_a_long_log_takes_milliseconds(recorded: list[tuple[dict[str, Any], ExitEvidence]]) -> None:
    """Two hundred lines within 5 ms on a free processor; the bound here leaves room for a loaded one."""
    worst = 0.0
    for _, evidence in recorded[::10]:
        long = ExitEvidence(evidence.engine, evidence.argv, exit_code=1, log=(evidence.log * 200)[:200])
        times = []
        for _ in range(5):
            started = time.perf_counter()
            classify(long)
            times.append(time.perf_counter() - started)
        worst = max(worst, min(times))
    assert worst < 0.020
