"""The journal: what is said of a request afterwards, and what is forgotten."""

from __future__ import annotations

from supervisor.events import (
    Event,
    EventBus,
    LaunchExited,
    LaunchReady,
    LaunchStarted,
    PlanMade,
    RequestDenied,
    RequestFinished,
    RequestLeased,
    RequestQueued,
)
from supervisor.memory_events import Evicted, RequestWaits
from supervisor.telemetry.journal import Journal
from tests.fakes.clock import HandClock


class _Day:
    """A bus with a journal, and a clock that is moved before each event."""

    def __init__(self, keep: int = 100) -> None:
        self.clock = HandClock()
        self.bus = EventBus(self.clock)
        self.journal = Journal(self.bus, self.clock, keep=keep)

    def say(self, event: Event, later: float = 0.0) -> None:
        self.clock.advance(later)
        self.bus.publish(event)


def _ended(request: str, *, seconds: float = 1.0, model: str | None = "b", status: int = 200) -> RequestFinished:
    return RequestFinished(request, "POST", "/v1/chat/completions", model, "laptop", status, "ok", seconds, 0.5)


def _died(launch: str) -> LaunchExited:
    return LaunchExited("b-1", "b", launch, "ready", None, 11, "CRASH", "build", "it crashed", planned=False, log=())


def test_a_request_that_evicted_and_loaded_is_told_in_full() -> None:
    """What it waited for with the arithmetic, who went, the load with its reasons, its slot, its end; in this order."""
    day = _Day()
    day.say(RequestWaits("r1", "b", "b needs 4 GiB in host, where 1 GiB is free (held by a 6 GiB); a goes for it"))
    day.say(Evicted("a-1", "a", "b", "b needs 4 GiB", drained=False))
    day.say(RequestQueued("r1", "b", "laptop", 1))
    day.say(PlanMade("b", "cuda", (("threads", 8, "of 8 CPUs"),), ("ctx_size",)), 1.0)
    day.say(LaunchStarted("b-1", "b", "b-1.1", 77, 1))
    day.say(LaunchReady("b-1", "b", "b-1.1", 3.0), 3.0)
    day.say(RequestLeased("r1", "b", "b-1", 0, 1.0, 3.0))
    day.say(_ended("r1", seconds=6.0), 2.0)

    told = day.journal.explain("r1")

    assert told is not None
    assert (told["state"], told["caller"], told["model"]) == ("finished", "laptop", "b")
    assert told["queued"][0]["position"] == 1
    assert "held by a 6 GiB" in told["waited_for"][0]["why"]
    assert [(row["model"], row["drained"]) for row in told["evicted"]] == [("a", False)]
    load = told["load"]
    assert (load["build"], load["seconds"], load["begun_before"], load["after_seconds"]) == ("cuda", 3.0, False, 1.0)
    assert load["reasons"] == [{"choice": "threads", "value": 8, "reason": "of 8 CPUs"}]
    assert told["leases"] == [
        {"after_seconds": 4.0, "instance": "b-1", "slot": 0, "queue_seconds": 1.0, "load_seconds": 3.0}
    ]
    assert (told["replayed"], told["degraded"]) == (False, ["ctx_size"])
    assert (told["ended"]["status"], told["ended"]["after_seconds"]) == (200, 6.0)
    story = [line["what"] for line in told["story"]]
    assert story[0].startswith("queued at position 1")
    assert story[-1] == "ended with 200 (ok) after 6s"
    assert [line["after_seconds"] for line in told["story"]] == sorted(line["after_seconds"] for line in told["story"])


def test_a_request_at_once_has_no_load_though_one_was_before() -> None:
    """A load that was over when it came is not its own; its plan's concessions are."""
    day = _Day()
    day.say(PlanMade("b", "cuda", (), ("slots",)))
    day.say(LaunchStarted("b-1", "b", "b-1.1", 77, 1))
    day.say(LaunchReady("b-1", "b", "b-1.1", 3.0), 3.0)
    day.say(RequestLeased("r1", "b", "b-1", 1, 0.0, 0.0), 60.0)

    told = day.journal.explain("r1")

    assert told is not None
    assert (told["state"], told["load"], told["queued"], told["waited_for"]) == ("leased", None, [], [])
    assert told["degraded"] == ["slots"]


def test_who_waits_for_a_load_that_others_began_hears_so() -> None:
    """The launch came before it: it waited for the rest."""
    day = _Day()
    day.say(LaunchStarted("b-1", "b", "b-1.1", 77, 1))
    day.say(RequestQueued("r1", "b", "laptop", 2), 1.0)

    told = day.journal.explain("r1")

    assert told is not None
    assert (told["state"], told["load"]["begun_before"], told["load"]["after_seconds"]) == ("waiting", True, -1.0)
    assert any("a load that had begun" in line["what"] for line in told["story"])


def test_a_replay_shows_both_leases_and_the_engines_death() -> None:
    """Between the two the engine died; other models' deaths are not its."""
    day = _Day()
    day.say(RequestLeased("r1", "b", "b-1", 0, 0.0, 0.0))
    day.say(_died("b-1.1"), 1.0)
    day.say(LaunchExited("a-1", "a", "a-1.1", "ready", None, 11, "CRASH", "build", "x", planned=False, log=()))
    day.say(LaunchStarted("b-1", "b", "b-1.2", 78, 2))
    day.say(RequestLeased("r1", "b", "b-1", 0, 0.0, 2.0), 2.0)
    day.say(_ended("r1", seconds=4.0), 1.0)

    told = day.journal.explain("r1")

    assert told is not None
    assert told["replayed"]
    assert [row["launch"] for row in told["engine_exits"]] == ["b-1.1"]
    assert told["load"]["launch"] == "b-1.2"
    assert any(line["what"].startswith("replayed: ") for line in told["story"])


def test_a_refusal_says_its_arithmetic() -> None:
    """The code, and why; also where no HTTP request has ended yet."""
    day = _Day()
    day.say(RequestDenied("r1", "b", "laptop", "does_not_fit", "b needs 9 GiB, the budget is 8 GiB", 0.5))

    told = day.journal.explain("r1")

    assert told is not None
    assert (told["state"], told["denied"]["code"]) == ("denied", "does_not_fit")
    assert told["denied"]["after_seconds"] == 0.5
    assert "9 GiB" in told["story"][0]["what"]


def test_only_the_last_hour_is_kept_and_only_so_many() -> None:
    """Bounded in time and in number, the oldest first; a status question or a health check takes no room."""
    day = _Day(keep=3)
    for number in range(5):
        day.say(_ended(f"r{number}"), 10.0)
    day.say(_ended("health", model=None))
    assert len(day.journal) == 3
    assert day.journal.explain("r1") is None
    assert day.journal.explain("r4") is not None
    assert day.journal.explain("health") is None
    day.clock.advance(3700.0)
    assert day.journal.explain("r4") is None
    assert len(day.journal) == 0


def test_a_request_that_was_refused_at_the_door_is_known() -> None:
    """It asked for no model that there is, and somebody will ask why."""
    day = _Day()
    day.say(_ended("r1", model=None, status=404))
    told = day.journal.explain("r1")
    assert told is not None
    assert told["ended"]["status"] == 404


def test_an_id_that_is_used_again_means_the_later_request() -> None:
    """Ids come from clients: two requests are not told as one that was replayed."""
    day = _Day()
    day.say(RequestLeased("r1", "b", "b-1", 0, 0.0, 0.0))
    day.say(_ended("r1"), 1.0)
    day.say(RequestLeased("r1", "b", "b-1", 1, 0.0, 0.0), 5.0)
    told = day.journal.explain("r1")
    assert told is not None
    assert (told["state"], told["replayed"], told["leases"][0]["slot"]) == ("leased", False, 1)


def test_one_request_can_not_fill_it() -> None:
    """A wait whose reason changes all the time keeps its beginning and its newest reasons."""
    day = _Day()
    day.say(RequestQueued("r1", "b", "laptop", 1))
    for number in range(1000):
        day.say(RequestWaits("r1", "b", f"reason {number}"))
    told = day.journal.explain("r1")
    assert told is not None
    assert len(told["waited_for"]) < 50
    assert told["queued"]
    assert told["waited_for"][-1]["why"] == "reason 999"
