"""The event bus."""

from __future__ import annotations

from supervisor.events import DaemonStopping, EventBus, InternalError, LaunchReady, Record
from tests.fakes.clock import HandClock


def test_an_event_is_named_by_its_class() -> None:
    """Names of events are stable words in snake case."""
    assert LaunchReady.name() == "launch_ready"


def test_listeners_hear_in_order_until_they_stop() -> None:
    """Each event is numbered from 1, stamped with the wall time, and handed on at once."""
    clock = HandClock()
    bus = EventBus(clock)
    heard: list[Record] = []
    stop = bus.listen(heard.append)
    bus.publish(DaemonStopping("a", 1))
    clock.advance(2)
    bus.publish(DaemonStopping("b", 1))
    stop()
    bus.publish(DaemonStopping("c", 1))
    assert [record.number for record in heard] == [1, 2]
    assert heard[1].at - heard[0].at == 2


def test_late_readers_get_what_is_kept() -> None:
    """The ring keeps the last ones; a reader asks by number."""
    bus = EventBus(HandClock(), keep=3)
    for reason in "abcde":
        bus.publish(DaemonStopping(reason, 0))
    assert [record.number for record in bus.since(0)] == [3, 4, 5]
    assert [record.number for record in bus.since(4)] == [5]


def test_a_fault_of_a_listener_is_told_and_ends_nothing() -> None:
    """The others hear all the same, whoever publishes goes on, and one that always fails is told of once an event."""
    bus = EventBus(HandClock())
    heard: list[str] = []

    def faulty(_record: Record) -> None:
        raise LookupError("no such thing")

    bus.listen(faulty)
    bus.listen(lambda record: heard.append(record.event.name()))
    bus.publish(DaemonStopping("a", 1))
    assert sorted(heard) == ["daemon_stopping", "internal_error"]
    [error] = [record.event for record in bus.since(0) if isinstance(record.event, InternalError)]
    assert (error.where, "no such thing" in error.error) == ("listener of daemon_stopping", True)
    assert "LookupError" in error.traceback
