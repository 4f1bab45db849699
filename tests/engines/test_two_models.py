"""Two real engines, and memory for one: each request for the other swaps them, and nothing else comes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import PATIENT
from tests.support.cgroups import Cgroup, NoCgroupError, made_cgroup
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import CHAT, LOG_ALL, ask, chat_body, status

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

_MIB = 2**20
# An engine is promised some 330 MiB, most of it for prompts that it may keep, and maps 92 MiB which both share.
_ONE_ENGINE = 600 * _MIB
# The same with the daemon in it, as in a container; what is left to promise is measured.
_CONTAINER = 720 * _MIB


@pytest.fixture(params=["host.memory", "cgroup"])
def room(request: pytest.FixtureRequest) -> Iterator[tuple[Cgroup | None, dict[str, Any]]]:
    """Memory for one engine: by the config's word, or by a limit of the kernel that everything is in."""
    if request.param == "host.memory":
        yield None, {"memory": f"{_ONE_ENGINE // _MIB}MiB", "reserve": {"memory": "0MiB"}}
        return
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(made_cgroup(memory=_CONTAINER))
        except NoCgroupError as error:
            pytest.skip(str(error))
        yield group, {"reserve": {"memory": "32MiB"}}


def _kills(group: Cgroup | None) -> int:
    """Processes that the kernel has ended for want of memory in the group."""
    if group is None:
        return 0
    lines = (group.memory / ("memory.events" if group.unified else "memory.oom_control")).read_text().split("\n")
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _holders(daemon: Daemon) -> list[str]:
    return [entry["model"] for entry in status(daemon)["ledger"]["host"]["entries"]]


def test_they_take_turns_in_memory_for_one(
    room: tuple[Cgroup | None, dict[str, Any]], tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """Evict, load, answer, each of them twice: no error, no kill, never two engines, and a book that ends empty.

    Two models in room for one are what the usual supervisors run out of memory with.
    """
    group, host = room
    launch = {"slots": 1, "threads": 1, "threads_batch": 1, "cache_ram": "256MiB"}
    models = {
        name: {"file": str(demo_model), "serves": ["chat"], "launch": {**launch, "ctx_size": size}}
        for name, size in (("one", 2048), ("two", 1536))
    }
    config = daemon_config(
        demo_engine.as_config(),
        models=models,
        host=host,
        concessions=[],
        broker={"eviction": {"min_idle": "10ms"}},
        supervision=PATIENT,
    )
    with running_daemon_sync(tmp_path, config, env=LOG_ALL, inside=group) as daemon:
        resident = None
        for model in ("one", "two", "one", "two"):
            if resident is not None:
                foreseen = ask(daemon, f"/admin/v1/plan?model={model}").json["ledger"]
                assert (foreseen["verdict"], foreseen["would_evict"]) == ("evicts", [resident]), foreseen
            answer = ask(daemon, CHAT, chat_body(model, max_tokens=4))
            assert answer.status == 200, answer.body
            assert answer.json["choices"][0]["message"]["content"]
            assert (_holders(daemon), len(daemon.engines())) == ([model], 1)
            told = ask(daemon, f"/admin/v1/requests/{answer.headers['x-request-id']}").json
            assert [row["model"] for row in told["evicted"]] == [resident] * (resident is not None)
            assert told["load"]["seconds"] > 0
            assert told["ended"]["status"] == 200
            resident = model
        assert ask(daemon, "/admin/v1/models/two/unload", b"").status == 200
        book = status(daemon)["ledger"]["host"]
        assert (book["reserved"], book["entries"]) == (0, [])
        exits = [record for record in daemon.records if record.get("event") == "launch_exited"]
    assert all(record["planned"] for record in exits), exits
    assert not [record for record in daemon.records if record.get("event") in {"over_committed", "internal_error"}]
    assert _kills(group) == 0


@pytest.mark.slow
def test_a_limit_that_is_lowered_while_one_idles_is_seen(
    tmp_path: Path, demo_engine: DemoEngine, demo_model: Path
) -> None:
    """Nothing starts, and still the book says by how much it is over; the idle engine goes, and it holds again."""
    models = {"one": {"file": str(demo_model), "serves": ["chat"], "launch": {"slots": 1, "threads": 1}}}
    config = daemon_config(
        demo_engine.as_config(),
        models=models,
        host={"reserve": {"memory": "32MiB"}},
        concessions=[],
        supervision=PATIENT,
    )
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(made_cgroup(memory=_CONTAINER))
        except NoCgroupError as error:
            pytest.skip(str(error))
        daemon = stack.enter_context(running_daemon_sync(tmp_path, config, env=LOG_ALL, inside=group))
        answer = ask(daemon, CHAT, chat_body("one", max_tokens=4))
        assert answer.status == 200, answer.body
        needed = status(daemon)["ledger"]["host"]["reserved"]
        group.set_memory(needed)
        over = daemon.wait_for_event("over_committed", timeout=60)
        gone = daemon.wait_for_event("evicted", timeout=60)
        daemon.wait_for_event("memory_released", timeout=60)
        book = status(daemon)["ledger"]["host"]
        assert over["over_bytes"] == over["reserved_bytes"] - over["budget_bytes"] > 0
        assert (gone["model"], gone["beneficiary"], gone["drained"]) == ("one", None, False)
        assert (book["reserved"], book["entries"]) == (0, [])
        assert 0 < book["budget"] < needed
        assert _kills(group) == 0
