"""``enginehouse classify FILE…``: the verdict on recorded exits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from engines.contract import Verdict
from engines.evidence import classify
from supervisor.cli.recorded_exits import RecordError, read_records

_GOOD = 0
_WRONG_CALL = 2


def classify_files(paths: Sequence[Path], json_output: bool) -> int:
    """Prints the verdicts on the exits in these files, in their order.

    With ``json_output`` one document: ``[{"kind", "blames", "runs_here", "why"}]``; a file with several exits gives
    several entries. If any file can't be used, each such file is named on stderr and stdout stays empty.

    Returns:
        0, or 2 when there is no file or one of them is no recorded exit.
    """
    if not paths:
        sys.stderr.write("classify: name at least one file with a recorded exit\n")
        return _WRONG_CALL
    verdicts: list[tuple[Path, Verdict]] = []
    problems: list[str] = []
    for path in paths:
        try:
            verdicts += [(path, classify(evidence)) for evidence in read_records(path)]
        except RecordError as error:
            problems.append(str(error))
    if problems:
        sys.stderr.write("".join(f"classify: {problem}\n" for problem in problems))
        return _WRONG_CALL
    if json_output:
        print(json.dumps([_document(verdict) for _, verdict in verdicts], ensure_ascii=False))
    else:
        for path, verdict in verdicts:
            print(f"{path}: {verdict.kind.value}, blames {verdict.blames.value}, runs here: {verdict.runs_here.value}")
            print(f"    {verdict.why}")
    return _GOOD


def _document(verdict: Verdict) -> dict[str, str]:
    return {
        "kind": verdict.kind.value,
        "blames": verdict.blames.value,
        "runs_here": verdict.runs_here.value,
        "why": verdict.why,
    }
