from __future__ import annotations

from string import Formatter

import pytest

from supervisor.event_bus import Event
from supervisor.events import InstanceChanged, LaunchStarted, PlanMade, RequestFinished, RequestLeased
from supervisor.memory_events import Evicted, MemoryReserved, OverCommitted
from supervisor.telemetry.sentences import SENTENCES, news, sentence
from tests.support.events import every_event


@pytest.mark.parametrize("kind", every_event(), ids=lambda kind: kind.__name__)
def test_every_event_that_the_page_tells_has_a_sentence(kind: type[Event]) -> None:
    """An event without one would stand there by its bare name; one that names a fact it lacks would say 'unknown'."""
    if kind.level == "debug" and kind.name() not in SENTENCES:
        return
    form = SENTENCES[kind.name()]
    named = {field for _, field, _, _ in Formatter().parse(form) if field}
    assert named <= set(kind.__dataclass_fields__), kind


def test_a_sentence_is_written_for_people() -> None:
    """Sizes and durations have units, what is not known says so, and it ends as a sentence does."""
    over = OverCommitted(pool="host", budget_bytes=2**30, reserved_bytes=3 * 2**29, over_bytes=2**29)
    assert sentence(over.name(), over.facts()) == (
        "host has promised 512.0 MiB too much: 1.5 GiB of 1.0 GiB. Idle engines go."
    )
    gone = Evicted("a-1", "a", None, "idle for 5s", drained=False)
    assert sentence(gone.name(), gone.facts()) == "a is stopped to make room for others: idle for 5s."


def test_braces_in_facts_are_text() -> None:
    """A model may be called anything, and its name is no form."""
    gone = Evicted("x", "{why.__class__}", "{0}", "{instance}", drained=False)
    assert sentence(gone.name(), gone.facts()) == "{why.__class__} is stopped to make room for {0}: {instance}."


def test_an_event_of_a_newer_room_says_its_name() -> None:
    """Better than nothing, and than an error in the stream."""
    assert sentence("brand_new", {}) == "Brand new."


def finished(path: str, status: int) -> RequestFinished:
    """The end of a request."""
    return RequestFinished("r", "GET", path, None, "c", status, "error", 0.5, None)


def test_what_is_no_news() -> None:
    """The page asks and is answered all day; so do clients that are served."""
    assert news(finished("/v1/chat/completions", 503)) is not None
    assert news(finished("/v1/chat/completions", 200)) is None
    assert news(finished("/admin/v1/plan", 404)) is None
    assert news(LaunchStarted("i", "m", "l", 1, 1)) is None
    assert news(PlanMade("m", "b", ())) is None
    assert news(PlanMade("m", "b", (), ("slots",))) == {"sentence": "m was planned on build b. Given up: slots."}


def test_every_sentence_is_of_an_event() -> None:
    """One whose event was renamed would never be said."""
    assert set(SENTENCES) <= {kind.name() for kind in every_event()}


def test_an_admission_is_told_with_its_arithmetic_and_each_thing_once() -> None:
    """Once a start stood there as "starting: wanted", without a figure, and an eviction as four lines."""
    admitted = news(MemoryReserved("i", "m", "host", 2**30, 2**29, 2**28))
    assert admitted == {
        "sentence": "m is admitted: 1.0 GiB of its own and 512.0 MiB of files in host, 256.0 MiB stay free."
    }
    assert news(RequestLeased("r", "m", "i", 0, 0.2, 0.0)) is None
    waited = news(RequestLeased("r", "m", "i", 0, 4.0, 2.0))
    assert waited == {"sentence": "A request for m is admitted after 4s in the queue and 2s for the load."}
    for new, reason in (("starting", "wanted"), ("stopping", "evicted: b needs it"), ("stopped", "stopped")):
        assert news(InstanceChanged("i", "m", "x", new, reason, 1)) is None
    assert news(InstanceChanged("i", "m", "ready", "stopping", "unloaded by hand", 1)) is not None
