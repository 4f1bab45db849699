from __future__ import annotations

import re
from pathlib import Path

from supervisor import errors
from supervisor.gateway.errors import INTERNAL_ERROR, TABLE, Retry


def _codes() -> set[str]:
    """Every code that the branches of the error tree announce in their docstrings."""
    found: set[str] = set()
    for branch in vars(errors).values():
        if isinstance(branch, type) and issubclass(branch, errors.SupervisorError):
            for quoted in re.findall(r"``([a-z_ \n]+)``", branch.__doc__ or ""):
                found |= set(quoted.split())
    return found


def test_the_table_knows_every_code() -> None:
    """A new error needs a row before it can reach a client, and no row outlives its error."""
    assert set(TABLE) - {INTERNAL_ERROR} == _codes()


def test_the_codes_are_really_found() -> None:
    """The test above reads docstrings: it must not pass because it read none."""
    assert {"model_not_found", "queue_full", "upstream_died", "invalid_json"} <= _codes()


def test_every_server_fault_says_whether_to_retry() -> None:
    """SDKs retry 429 and 5xx by themselves, so each such row gives advice; others need none."""
    for code, row in TABLE.items():
        retried_by_itself = row.status == 429 or row.status >= 500
        assert (row.retry is not Retry.UNSAID) == retried_by_itself, code


def test_retry_after_stays_within_its_bounds() -> None:
    """Retry-After is at most 60 seconds."""
    assert all(1 <= row.seconds <= 60 for row in TABLE.values())


def test_every_code_that_is_raised_has_a_row() -> None:
    """Prevents that a refusal for want of memory, whose code no docstring named, was told as an internal error."""
    raised = set()
    for path in Path(errors.__file__).parent.rglob("*.py"):
        if "cli" not in path.parts:
            found = re.findall(r"(?:Denial|[A-Z][a-z]+Error)\(\s*\"([a-z_]+)\"", path.read_text(encoding="utf-8"))
            raised |= set(found)
    assert {"no_room", "queue_full", "does_not_fit"} <= raised
    assert raised <= TABLE.keys()
