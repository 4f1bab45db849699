"""How long a group stood still."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.files import HostFiles
from supervisor.host.throttling import Throttling, read_throttling
from tests.fakes.host_tree import lay_out

_V2 = "usage_usec 5\nuser_usec 3\nnr_periods 120\nnr_throttled 30\nthrottled_usec 2500000\nnr_bursts 0\n"
_V1 = "nr_periods 120\nnr_throttled 30\nthrottled_time 2500000000\nnr_bursts 0\nburst_time 0\n"


@pytest.mark.parametrize(("name", "text"), [("cpu.max", _V2), ("cpu.cfs_quota_us", _V1)])
def test_both_versions_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    """Version 1 counts nanoseconds, version 2 microseconds."""
    files = HostFiles(lay_out(tmp_path, {"/cg/a/cpu.stat": text}))

    assert read_throttling(files, f"/cg/a/{name}") == Throttling(120, 30, 2.5, "/cg/a/cpu.stat")


@pytest.mark.parametrize("source", [None, "host.cpus", "/sys/devices/system/cpu/online", "/cg/b/cpu.max", "cpu.max"])
def test_without_a_quota_there_is_nothing_to_say(tmp_path: Path, source: str | None) -> None:
    """Where something else decides, or the group has no such file, nothing is known."""
    assert read_throttling(HostFiles(lay_out(tmp_path, {"/cg/a/cpu.stat": _V2})), source) is None


@given(text=st.binary(max_size=80) | st.sampled_from([b"nr_periods 5\n", b"nr_periods -1\nnr_throttled x\n"]))
def test_malformed_counts_are_no_counts(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """Whatever stands in the file: no exception, and nothing that is made up."""
    files = HostFiles(lay_out(tmp_path_factory.mktemp("root"), {"/cg/cpu.stat": text}))

    found = read_throttling(files, "/cg/cpu.max")

    assert found is None or (b"nr_periods" in text and b"nr_throttled" in text)


def test_what_came_between_two_readings() -> None:
    """Differences, and their share of the periods."""
    window = Throttling(150, 60, 4.0, "a").since(Throttling(50, 10, 1.5, "a"))

    assert window == Throttling(100, 50, 2.5, "a")
    assert window.share == 0.5


@pytest.mark.parametrize("before", [None, Throttling(5, 1, 0.1, "b"), Throttling(500, 1, 0.1, "a")])
def test_another_group_or_a_new_one_has_no_between(before: Throttling | None) -> None:
    """A group that was made anew starts from nothing; the difference would be below nothing."""
    assert Throttling(150, 60, 4.0, "a").since(before) is None
