"""What a plan does about a device that is gone."""

from __future__ import annotations

import pytest

from supervisor.errors import PlanError
from supervisor.host.lost import LostDevice
from supervisor.planning.device_loss import without_lost

GONE = (LostDevice("CUDA0", "NVIDIA H200", "gpu-0000:01:00.0", "NVML: Unknown"),)


@pytest.mark.parametrize("wished", [None, ("CUDA0",), ("CUDA1", "CUDA0")])
def test_a_plan_that_would_use_it_is_refused(wished: tuple[str, ...] | None) -> None:
    """By name, or by leaving the choice to us; the message says what to do."""
    with pytest.raises(PlanError, match=r"host\.device_lost: degrade") as refused:
        without_lost("m", wished, GONE, "fail")
    assert (refused.value.code, refused.value.facts["devices"]) == ("device_lost", ["CUDA0"])


@pytest.mark.parametrize("wished", [(), ("CUDA1",)])
def test_a_plan_that_would_not_use_it_goes_on(wished: tuple[str, ...]) -> None:
    """Nothing is said of it either."""
    for policy in ("fail", "degrade"):
        found = without_lost("m", wished, GONE, policy)
        assert (found.wished, found.missed) == (wished, ())


def test_degrade_plans_with_what_is_left() -> None:
    """Of named devices the others; it is told which one is missed."""
    assert without_lost("m", ("CUDA1", "CUDA0"), GONE, "degrade").wished == ("CUDA1",)
    assert without_lost("m", None, GONE, "degrade").wished is None
    assert without_lost("m", None, GONE, "degrade").missed == GONE
