"""Who is leased, what is started, who must go for it, who waits and who is refused."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.broker.admission import Decision, ModelView, Phase, Policy, Prospect, World, admit
from supervisor.broker.eviction import Resident
from supervisor.broker.ledger import Claim, Entry, Ledger, Pool
from supervisor.broker.tickets import Denial, QueueLimits, Ticket, refuse_new

NOW = 1000.0
GPU = "gpu-0"
BROKEN = Denial("start_failed", "it did not start", 1.0)


def ticket(number: int, model: str = "m", caller: str = "a", since: float = NOW, **more: object) -> Ticket:
    """A waiting ticket."""
    return Ticket(number, f"r{number}", caller, model, "interactive", since, **more)  # type: ignore[arg-type]


def resting(model: str, need: int = 10, **more: object) -> ModelView:
    """A model whose start would take ``need`` bytes of the host."""
    view = ModelView(model, f"{model}-1", Phase.RESTING, prospect=Prospect({"host": Claim(need)}))
    return replace(view, **more)  # type: ignore[arg-type]


def ready(model: str, free: tuple[int, ...] = (), idle: float | None = 100.0, **more: object) -> ModelView:
    """A model that runs, idle for so many seconds; None: in use."""
    since = None if idle is None else NOW - idle
    resident = Resident(f"{model}-1", model, since, **more)  # type: ignore[arg-type]
    return ModelView(model, f"{model}-1", Phase.READY, free, resident=resident)


def world(tickets: list[Ticket], *views: ModelView, budget: int = 100, **held: int) -> World:
    """A host pool, the models, and what some of them hold."""
    queues: dict[str, list[Ticket]] = {view.model: [] for view in views}
    for one in tickets:
        queues[one.model_id].append(one)
    entries = {f"{name}-1": Entry(f"{name}-1", name, {"host": Claim(size)}) for name, size in held.items()}
    ledger = Ledger({"host": Pool(budget), GPU: Pool(None)}, entries)
    return World(NOW, queues, {view.model: view for view in views}, ledger)


def granted(decision: Decision) -> list[tuple[int, int | None]]:
    """Ticket numbers and slots."""
    return [(grant.ticket.number, grant.slot) for grant in decision.grants]


def started(decision: Decision) -> list[str]:
    """Models that are started."""
    return [start.model for start in decision.starts]


def evicted(decision: Decision) -> list[tuple[str, bool]]:
    """Models that go, and whether they are drained first."""
    return [(gone.model, gone.drain) for gone in decision.evictions]


def why(decision: Decision) -> str:
    """What the only waiter waits for."""
    (wait,) = decision.waits
    return wait.why


def test_free_slots_go_to_the_oldest() -> None:
    """Two free slots and three tickets: two are served, lowest slot first; the third knows why it waits."""
    decision = admit(world([ticket(1), ticket(2), ticket(3)], ready("m", (0, 2))))
    assert granted(decision) == [(1, 0), (2, 2)]
    assert "slots" in why(decision)


def test_slots_are_shared_by_callers() -> None:
    """One caller's three do not stand before another's one."""
    tickets = [ticket(1), ticket(2), ticket(3), ticket(4, caller="b")]
    assert granted(admit(world(tickets, ready("m", (0, 1))))) == [(1, 0), (4, 1)]


def test_a_load_by_hand_needs_no_slot() -> None:
    """It is satisfied by a ready engine, also with every slot taken."""
    assert granted(admit(world([ticket(1, slotless=True)], ready("m", ())))) == [(1, None)]


def test_nothing_is_granted_unless_the_instance_accepts() -> None:
    """One that loads or stops has no slots to give."""
    for phase in (Phase.STARTING, Phase.LEAVING):
        decision = admit(world([ticket(1)], resting("m", phase=phase, free_slots=(0,))))
        assert (granted(decision), started(decision)) == ([], [])


def test_all_are_refused_when_the_instance_can_not_start() -> None:
    """Nobody waits for what will not come: each waiter gets the reason."""
    decision = admit(world([ticket(1), ticket(2)], resting("m", can_start=False, failure=BROKEN)))
    assert [denial for _, denial in decision.denials] == [BROKEN, BROKEN]


def test_a_failed_instance_may_be_tried_again_in_its_time() -> None:
    """Once another start makes sense, a request asks for it instead of hearing of the old failure."""
    assert started(admit(world([ticket(1)], resting("m", failure=BROKEN)))) == ["m"]


def test_a_start_is_thought_about_first() -> None:
    """Without a prospect nothing is started; the model is named to be thought about, once."""
    decision = admit(world([ticket(1), ticket(2)], resting("m", prospect=None)))
    assert (decision.think, started(decision)) == (("m",), [])


def test_an_old_prospect_neither_starts_nor_refuses() -> None:
    """The machine may have changed: it is thought about anew, and keeps its place meanwhile."""
    decision = admit(world([ticket(1), ticket(2, "n")], resting("m", 60, stale=True), resting("n", 60)))
    assert (decision.think, started(decision)) == (("m",), [])
    refused = Prospect(denial=BROKEN)
    decision = admit(world([ticket(1)], resting("m", prospect=refused, stale=True)))
    assert (decision.think, decision.denials) == (("m",), ())


def test_two_starts_never_share_the_same_room() -> None:
    """Within one pass the second start sees what the first has taken."""
    decision = admit(world([ticket(1), ticket(2, "n")], resting("m", 60), resting("n", 60)))
    assert started(decision) == ["m"]


def test_an_idle_engine_goes_for_another() -> None:
    """Not enough room: the idle one is stopped, the newcomer waits for its bytes."""
    decision = admit(world([ticket(1)], resting("m", 60), ready("old"), old=50))
    assert (started(decision), evicted(decision)) == ([], [("old", False)])
    assert "old goes for it" in why(decision)
    assert "50 B" in why(decision)


def test_bytes_on_their_way_back_are_waited_for() -> None:
    """While the victim stops nobody else is stopped, and nobody else gets its room."""
    leaving = replace(ready("old"), phase=Phase.LEAVING)
    tickets = [ticket(1), ticket(2, "n")]
    decision = admit(world(tickets, resting("m", 60), resting("n", 40), leaving, ready("z"), old=50, z=10))
    assert (started(decision), evicted(decision)) == ([], [("z", False)])
    assert "on its way back" in decision.waits[0].why


def test_pinned_and_just_used_engines_are_not_evicted() -> None:
    """A pinned one never goes; one used a moment ago goes when it has been idle for long enough."""
    decision = admit(world([ticket(1)], resting("m", 60), ready("old", pinned=True), old=50))
    assert evicted(decision) == []
    assert decision.denials[0][1].code == "no_room"
    assert "old" in decision.denials[0][1].why
    decision = admit(world([ticket(1)], resting("m", 60), ready("old", idle=2), old=50))
    assert (evicted(decision), decision.denials) == ([], ())
    assert decision.next_look == NOW + 3


def test_engines_in_use_are_drained_only_when_the_wait_lasts() -> None:
    """Requests for a resident model pass ahead of one that needs a swap, up to a bound; then the swap wins."""
    views = resting("m", 60), ready("old", idle=None)
    soon = admit(world([ticket(1)], *views, old=50))
    assert (evicted(soon), soon.next_look) == ([], NOW + 10)
    assert "in use" in why(soon)
    late = admit(world([ticket(1, since=NOW - 10)], *views, old=50))
    assert evicted(late) == [("old", True)]
    assert "takes no new requests" in why(late)


def test_a_smaller_plan_is_taken_where_the_owner_prefers_it() -> None:
    """With ``concede`` nobody waits for engines in use if a smaller plan fits now; idle ones still go first."""
    prospect = Prospect({"host": Claim(60)}, conceded={"host": Claim(40)})
    busy = world([ticket(1)], resting("m", prospect=prospect), ready("old", idle=None), old=50)
    assert started(admit(busy)) == []
    (start,) = admit(replace(busy, policy=Policy(concede=True))).starts
    assert start.conceded
    idle = world([ticket(1)], resting("m", prospect=prospect), ready("old"), old=50)
    assert evicted(admit(replace(idle, policy=Policy(concede=True)))) == [("old", False)]


def test_beside_pinned_models_a_smaller_plan_is_better_than_none() -> None:
    """Waiting would never help."""
    prospect = Prospect({"host": Claim(60)}, conceded={"host": Claim(40)})
    decision = admit(world([ticket(1)], resting("m", prospect=prospect), ready("old", pinned=True), old=50))
    assert started(decision) == ["m"]


def test_what_never_fits_is_refused_with_the_arithmetic() -> None:
    """More than the whole budget: nobody is stopped in vain."""
    decision = admit(world([ticket(1)], resting("m", 101), ready("old"), old=50))
    ((_, denial),) = decision.denials
    assert (denial.code, evicted(decision)) == ("does_not_fit", [])
    assert "101 B" in denial.why
    assert "100 B" in denial.why


def test_one_load_at_a_time_in_a_device() -> None:
    """So that a device's figures can be attributed; the host's loads are never serialised."""
    on_gpu = Prospect({GPU: Claim(1)}, serial_pools=frozenset({GPU}))
    views = resting("m", prospect=on_gpu), resting("n", prospect=on_gpu)
    decision = admit(world([ticket(1), ticket(2, "n")], *views))
    assert started(decision) == ["m"]
    assert "one at a time" in why(decision)
    hosts = admit(world([ticket(1), ticket(2, "n")], resting("m"), resting("n")))
    assert started(hosts) == ["m", "n"]


def test_an_over_committed_pool_sheds_idle_engines() -> None:
    """Nobody waits, but more is held than may be: the idle one goes, the busy one stays."""
    decision = admit(world([], ready("a", idle=None), ready("b"), budget=80, a=50, b=40))
    assert evicted(decision) == [("b", False)]


def test_a_small_excess_stops_nobody() -> None:
    """Regression: a plan that filled the budget was stopped and loaded again whenever others took a few bytes more."""
    a_hundredth = admit(world([], ready("a"), budget=1000, a=1010))
    assert evicted(a_hundredth) == []
    more = admit(world([], ready("a"), budget=1000, a=1011))
    assert evicted(more) == [("a", False)]


def test_the_queue_is_bounded_in_total_and_by_caller() -> None:
    """The third of one caller and the fourth of all are refused, with the numbers."""
    limits = QueueLimits(per_caller=2, total=3, max_wait=10)
    own = refuse_new([ticket(1), ticket(2)], ticket(3), limits)
    assert own is not None
    assert own.code == "queue_full"
    assert "2 requests of a wait" in own.why
    assert refuse_new([ticket(1), ticket(2)], ticket(3, caller="b"), limits) is None
    total = refuse_new([ticket(1), ticket(2), ticket(3, caller="b")], ticket(4, caller="c"), limits)
    assert total is not None
    assert "3 requests wait" in total.why


NAMES = "abcd"
phases = st.sampled_from(list(Phase))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Pictures of any kind, over-committed ones among them."""
    views, held = [], {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        phase = draw(phases)
        need = draw(st.integers(0, 120))
        prospect = draw(
            st.sampled_from(
                [
                    None,
                    Prospect({"host": Claim(need)}),
                    Prospect({"host": Claim(need)}, {"host": Claim(need // 2)}),
                    Prospect(denial=BROKEN),
                ]
            )
        )
        resident = None
        if phase is not Phase.RESTING:
            held[name] = draw(st.integers(0, 60))
            idle = draw(st.one_of(st.none(), st.floats(0, 50)))
            since = None if idle is None else NOW - idle
            resident = Resident(f"{name}-1", name, since, pinned=draw(st.booleans()), demand=draw(st.floats(0, 2)))
        free = tuple(range(draw(st.integers(0, 3)))) if phase is Phase.READY else ()
        failed = draw(st.booleans())
        views.append(
            ModelView(
                name,
                f"{name}-1",
                phase,
                free,
                can_start=not failed,
                failure=BROKEN if failed else None,
                resident=resident,
                prospect=prospect,
                stale=draw(st.booleans()),
            )
        )
    names = [view.model for view in views]
    asked = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from("xy"), st.floats(0, 30)), max_size=8))
    tickets = [ticket(n, model, caller, NOW - age) for n, (model, caller, age) in enumerate(asked)]
    return world(tickets, *views, budget=draw(st.integers(0, 200)), **held)


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_whatever_the_picture_the_decision_is_lawful(picture: World) -> None:
    """Grants only on ready engines and free slots; starts fit; victims are idle, or drained, and never pinned."""
    decision = admit(picture)
    slots: set[tuple[str, int | None]] = set()
    for grant in decision.grants:
        view = picture.models[grant.ticket.model_id]
        assert view.phase is Phase.READY
        assert grant.slot in view.free_slots
        assert (view.model, grant.slot) not in slots
        slots.add((view.model, grant.slot))
    ledger = picture.ledger
    for start in decision.starts:
        view = picture.models[start.model]
        assert view.phase is Phase.RESTING
        assert not view.stale
        ledger = ledger.reserve(Entry(view.instance, view.model, start.claims))
    assert len({start.model for start in decision.starts}) == len(decision.starts)
    for gone in decision.evictions:
        resident = picture.models[gone.model].resident
        assert resident is not None
        assert not resident.pinned
        assert picture.models[gone.model].phase is Phase.READY
        assert gone.drain or resident.idle_since is not None
    assert len({gone.model for gone in decision.evictions}) == len(decision.evictions)
    settled = [grant.ticket for grant in decision.grants] + [one for one, _ in decision.denials]
    assert len(settled) == len(set(settled))
    for model, queue in picture.queues.items():
        left = [one for one in queue if one not in settled]
        told = {wait.ticket.model_id for wait in decision.waits} | set(started(decision)) | set(decision.think)
        assert not left or model in told, "somebody waits, and nothing says for what"


def test_who_comes_behind_others_waits_and_is_not_told_of_pins() -> None:
    """Idle room is promised to the first; the second is not refused as if pinned models held it."""
    views = [ready("a", (0,)), resting("b", need=80), resting("c", need=60)]
    decision = admit(world([ticket(1, "b"), ticket(2, "c", caller="x")], *views, a=60))
    assert evicted(decision) == [("a", False)]
    assert decision.denials == ()
    assert "before it" in decision.waits[-1].why


def test_a_smaller_plan_is_not_taken_only_because_others_come_first() -> None:
    """A concession is for those who prefer it, or can't have more: not for who would just have to wait."""
    smaller = Prospect({"host": Claim(60)}, conceded={"host": Claim(20)})
    views = [ready("a", (0,)), resting("b", need=80), resting("c", prospect=smaller)]
    decision = admit(world([ticket(1, "b"), ticket(2, "c", caller="x")], *views, a=60))
    assert started(decision) == []


def test_many_models_that_need_room_do_not_hold_up_one_that_fits() -> None:
    """Only the first ones are thought through; one far behind that fits beside everything still starts."""
    views = [ready("a", idle=None), *(resting(f"b{n}", need=50) for n in range(9)), resting("z", need=5)]
    tickets = [ticket(n, f"b{n}", caller=f"c{n}") for n in range(9)] + [ticket(99, "z", caller="z")]
    decision = admit(world(tickets, *views, a=60))
    assert started(decision) == ["z"]
    assert len(decision.waits) == 9


def loading(model: str) -> tuple[ModelView, Entry]:
    """A model that loads in the device, nothing else being known of it, and its entry."""
    view = ModelView(model, f"{model}-1", Phase.STARTING)
    return view, Entry(f"{model}-1", model, {GPU: Claim(1)}, serial=frozenset({GPU}))


def test_a_load_is_known_by_its_entry() -> None:
    """Regression: a reload forgot what a starting model's launch would take, and with it that it loads in a device."""
    on_gpu = Prospect({GPU: Claim(1)}, serial_pools=frozenset({GPU}))
    view, entry = loading("a")
    picture = world([ticket(1, "m")], view, resting("m", prospect=on_gpu))
    decision = admit(replace(picture, ledger=replace(picture.ledger, entries={entry.instance: entry})))
    assert (started(decision), "one at a time" in why(decision)) == ([], True)


def test_a_pause_after_a_failure_holds_up_nobody_else() -> None:
    """Regression: who waited for a failed model kept its place in the device for the whole pause before its restart."""
    on_gpu = Prospect({GPU: Claim(1)}, serial_pools=frozenset({GPU}))
    resting_a = resting("a", prospect=on_gpu, backing_off=True, failure=BROKEN)
    decision = admit(world([ticket(1, "a"), ticket(2, "m")], resting_a, resting("m", prospect=on_gpu)))
    assert (started(decision), "after a pause" in why(decision)) == (["m"], True)


def test_far_behind_it_is_only_glanced_at() -> None:
    """The first that need room are thought through; who comes after them hears so, and starts if it fits as it is."""
    views = [ready("old", idle=None), *(resting(f"m{n}", 60) for n in range(5)), resting("small", 3)]
    tickets = [ticket(n, f"m{n}") for n in range(5)] + [ticket(9, "small")]
    decision = admit(world(tickets, *views, old=95))
    said = {wait.ticket.model_id: wait.why for wait in decision.waits}
    assert started(decision) == ["small"]
    assert ["others come before it" in said[f"m{n}"] for n in range(5)] == [False, False, True, True, True]
