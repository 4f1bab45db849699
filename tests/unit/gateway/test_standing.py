"""On whose account a request stands, and in which lane."""

from __future__ import annotations

import pytest

from supervisor.errors import CallerError
from supervisor.gateway.caller import Caller
from supervisor.gateway.standing import Standing, standing_of


def test_a_caller_stands_by_its_name_and_weight() -> None:
    """Nothing said: interactive, on its own account."""
    assert standing_of(Caller("laptop", weight=2.0), {}) == Standing("laptop", "interactive", 2.0)


def test_only_a_trusted_caller_is_divided_into_its_users() -> None:
    """A header of anybody else's would let one caller be many."""
    headers = {"x-openwebui-user-id": "ann"}
    assert standing_of(Caller("ui", trusted=True), headers).account == "ui/ann"
    assert standing_of(Caller("ui"), headers).account == "ui"
    both = {**headers, "x-enginehouse-user": "bob"}
    assert standing_of(Caller("ui", trusted=True), both).account == "ui/bob"
    assert standing_of(Caller("ui", trusted=True), {"x-enginehouse-user": "\x00"}).account == "ui"
    long = {"x-enginehouse-user": "x" * 9999}
    assert len(standing_of(Caller("ui", trusted=True), long).account) < 200


def test_nobody_gets_above_its_own_lane() -> None:
    """One that may be in the background only is there whatever it says."""
    assert standing_of(Caller("cron", max_lane="background"), {"x-enginehouse-priority": "interactive"}).lane == (
        "background"
    )
    assert standing_of(Caller("a"), {"x-enginehouse-priority": " Background "}).lane == "background"


def test_a_priority_that_is_no_lane_is_refused() -> None:
    """A typo must not silently be something else."""
    with pytest.raises(CallerError) as caught:
        standing_of(Caller("a"), {"x-enginehouse-priority": "high"})
    assert caught.value.code == "invalid_request"
