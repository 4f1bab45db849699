"""First come, first served, within limits."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.broker.admission import Denial, InstanceView, QueueLimits, Ticket, decide, refuse_new

LIMITS = QueueLimits(per_caller=2, total=3, max_wait=10)
BROKEN = Denial("start_failed", "it did not start", 1.0)


def ticket(number: int, caller: str = "a") -> Ticket:
    """A waiting ticket."""
    return Ticket(number, f"r{number}", caller, "m", "interactive", float(number))


def view(
    free: tuple[int, ...], *, accepting: bool, can_start: bool = True, failure: Denial | None = None
) -> InstanceView:
    """What admission sees of an instance."""
    return InstanceView(accepting, can_start, free, failure)


def test_free_slots_go_to_the_oldest() -> None:
    """Two free slots and three tickets: the first two are served, lowest slot first."""
    decision = decide([ticket(1), ticket(2), ticket(3)], view((0, 2), accepting=True))
    assert [(waiting.number, slot) for waiting, slot in decision.grants] == [(1, 0), (2, 2)]
    assert not decision.want_instance


def test_nothing_is_granted_unless_the_instance_accepts() -> None:
    """A free slot of an instance that is loading, stopping or draining is no slot."""
    decision = decide([ticket(1)], view((0,), accepting=False))
    assert decision.grants == ()
    assert decision.want_instance


def test_all_are_refused_when_the_instance_can_not_start() -> None:
    """Nobody waits for what will not come: each waiter gets the reason."""
    decision = decide([ticket(1), ticket(2)], view((), accepting=False, can_start=False, failure=BROKEN))
    assert [denial for _, denial in decision.denials] == [BROKEN, BROKEN]


def test_a_failed_instance_may_be_tried_again_in_its_time() -> None:
    """Once another start makes sense, a request asks for it instead of hearing of the old failure."""
    assert decide([ticket(1)], view((), accepting=False, failure=BROKEN)).want_instance


def test_the_queue_is_bounded_in_total_and_by_caller() -> None:
    """The third of one caller and the fourth of all are refused, with the numbers."""
    own = refuse_new([ticket(1), ticket(2)], ticket(3), LIMITS)
    assert own is not None
    assert own.code == "queue_full"
    assert "2 requests of a wait" in own.why
    assert refuse_new([ticket(1), ticket(2)], ticket(3, "b"), LIMITS) is None
    total = refuse_new([ticket(1), ticket(2), ticket(3, "b")], ticket(4, "c"), LIMITS)
    assert total is not None
    assert "3 requests wait" in total.why


@given(st.lists(st.integers(0, 100), unique=True, max_size=10), st.sets(st.integers(0, 7)), st.booleans())
def test_a_slot_is_granted_once_and_in_order(numbers: list[int], free: set[int], accepting: bool) -> None:
    """Whatever the queue: no slot twice, no ticket twice, nobody overtakes, and no grant unless accepting."""
    queue = [ticket(number) for number in numbers]
    decision = decide(queue, view(tuple(sorted(free)), accepting=accepting))
    granted = [waiting for waiting, _ in decision.grants]
    slots = [slot for _, slot in decision.grants]
    assert granted == queue[: len(granted)]
    assert len(set(slots)) == len(slots)
    assert set(slots) <= free
    assert accepting or not granted
