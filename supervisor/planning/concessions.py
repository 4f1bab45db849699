"""The ladder: what a launch gives up so that it fits, step by step, in the order of the config. Pure.

Steps that make a launch smaller (slots, KV type, context) are tried before the steps behind them that move it off the
devices (experts, layers, everything). A step that does not lead to a fit is taken back: a model whose weights alone are
too large for the devices keeps its slots, its KV type and its context when a part of its layers goes to the host. Only
where an earlier step would bring at least a quarter more layers onto the devices is it taken after all.

What the user wrote stands, except for a context that says itself how small it may become (``min_ctx_size``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from engines.contract import Choice, Movable, PlanDraft, Tried
from supervisor.planning.placement import Place, Placements, largest
from supervisor.planning.scales import Scales, Weighed

# A context is cut to whole multiples of this, and where nobody said how small it may be, not below the least.
CTX_STEP = 1024
LEAST_CTX = 4096
_WORTH = 1.25

STEPS = ("slots", "cache_type", "ctx_size", "experts_to_cpu", "n_gpu_layers", "cpu")
_SIZES = STEPS[:3]


@dataclass(frozen=True, slots=True)
class Ladder:
    """What may be given up.

    Attributes:
        allowed: names of steps, in the order in which they are taken.
        fixed: names of steps that a user's own number forbids, with the place of the number.
        min_ctx_size: tokens; the context may be cut to this.
    """

    allowed: tuple[str, ...]
    fixed: Mapping[str, str]
    min_ctx_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What fits, or the last that was tried.

    Attributes:
        degraded: names of the steps that were taken.
        choices: each of those steps with its reason, and why a step was not open.
        attempts: what was weighed on the way, when the first wish did not fit.
    """

    weighed: Weighed
    degraded: tuple[str, ...]
    choices: tuple[Choice, ...]
    attempts: tuple[Tried, ...]


def concede(draft: PlanDraft, placements: Placements, movable: Movable, ladder: Ladder, scales: Scales) -> Outcome:
    """Climb down until the draft fits or nothing is left to give up."""
    return _Climb(draft, placements, movable, ladder, scales).run()


class _Climb:
    def __init__(
        self, draft: PlanDraft, placements: Placements, movable: Movable, ladder: Ladder, scales: Scales
    ) -> None:
        self._draft = draft
        self._ladder = ladder
        self._scales = scales
        self._movable = movable
        self._moves = placements.moves()
        self._whole = placements.whole
        self._wished = draft
        self._attempts: list[Tried] = []
        self._smaller: dict[str, Callable[[PlanDraft], Iterator[PlanDraft]]] = {
            "slots": _fewer_slots,
            "cache_type": self._smaller_types,
        }

    def run(self) -> Outcome:
        """Down the ladder, step by step."""
        place: Place = self._whole
        best = place(self._draft)
        self._wished = best.draft
        self._note(best)
        sizes: list[str] = []
        for step in self._ladder.allowed:
            if best.fits:
                break
            if step in self._moves:
                place = self._moves[step]
                found = self._moved(place, sizes, gains=step == "n_gpu_layers")
            elif step in _SIZES and step not in self._ladder.fixed:
                sizes.append(step)
                found = self._shrunk(place, sizes[:-1], step)
            else:
                continue
            best = found if found.fits or found.worst < best.worst else best
        return self._outcome(best)

    def _moved(self, place: Place, sizes: list[str], *, gains: bool) -> Weighed:
        """At another place: first without any size step, then with as few of those so far as will do."""
        found = place(self._draft)
        self._note(found)
        if found.fits:
            return self._with_gains(found, place, sizes) if gains else found
        for number, size in enumerate(sizes):
            smaller = self._shrunk(place, sizes[:number], size)
            if smaller.fits or smaller.worst < found.worst:
                found = smaller
            if found.fits:
                break
        return found

    def _shrunk(self, place: Place, taken: list[str], step: str) -> Weighed:
        """With the steps ``taken`` in full: the least of one more that fits, or all of it."""
        draft = self._draft
        for size in taken:
            draft = self._least(size, draft)
        if step == "ctx_size":
            found = self._less_context(place, draft)
        else:
            found = place(draft)
            for smaller in self._smaller[step](draft):
                found = place(smaller)
                if found.fits:
                    break
        self._note(found)
        return found

    def _least(self, size: str, draft: PlanDraft) -> PlanDraft:
        """The draft with all of a step taken."""
        if size == "ctx_size":
            return replace(draft, ctx_size=min(draft.ctx_size or 0, self._least_ctx(draft)))
        return deque(chain((draft,), self._smaller[size](draft)), maxlen=1)[0]

    def _least_ctx(self, draft: PlanDraft) -> int:
        steps = max(1, -(-self._ladder.min_ctx_size // CTX_STEP))
        return min(draft.ctx_size or 0, steps * CTX_STEP)

    def _less_context(self, place: Place, draft: PlanDraft) -> Weighed:
        least, most = self._least_ctx(draft) // CTX_STEP, ((draft.ctx_size or 0) - 1) // CTX_STEP
        if draft.ctx_size is None or not 0 < least <= most:
            return place(draft)
        return largest(least, most, lambda steps: place(replace(draft, ctx_size=steps * CTX_STEP)))

    def _smaller_types(self, draft: PlanDraft) -> Iterator[PlanDraft]:
        types = self._movable.cache_types
        after = types[types.index(draft.cache_type) + 1 :] if draft.cache_type in types else ()
        return (replace(draft, cache_type=cache_type) for cache_type in after)

    def _with_gains(self, found: Weighed, place: Place, sizes: list[str]) -> Weighed:
        """Steps that bring many more layers onto the devices are taken even where it fits without them."""
        for size in sizes:
            for smaller in self._smaller[size](_sizes_of(found.draft, self._draft)) if size in self._smaller else ():
                better = place(smaller)
                if better.fits and (better.draft.n_gpu_layers or 0) >= (found.draft.n_gpu_layers or 0) * _WORTH:
                    found = better
                    self._note(found)
        return found

    def _note(self, weighed: Weighed) -> None:
        given = differences(self._wished, weighed.draft, self._movable)
        self._attempts.append(self._scales.attempt("; ".join(text for _, text in given) or "as wished", weighed))

    def _outcome(self, weighed: Weighed) -> Outcome:
        given = differences(self._wished, weighed.draft, self._movable)
        why = "it does not fit otherwise" if weighed.fits else "and it does not fit even so"
        choices = [Choice("conceded", name, f"{text}: {why}") for name, text in given]
        if not weighed.fits:
            closed = {name: "concessions leaves it out" for name in STEPS if name not in self._ladder.allowed}
            closed |= self._ladder.fixed
            choices += [Choice("kept", name, f"not given up: {reason}") for name, reason in closed.items()]
        attempts = tuple(self._attempts) if len(self._attempts) > 1 or not weighed.fits else ()
        return Outcome(weighed, tuple(name for name, _ in given), tuple(choices), attempts)


def _fewer_slots(draft: PlanDraft) -> Iterator[PlanDraft]:
    return (replace(draft, slots=slots) for slots in range(draft.slots - 1, 0, -1))


def _sizes_of(placed: PlanDraft, draft: PlanDraft) -> PlanDraft:
    """The draft with the sizes of another, and not its place."""
    return replace(draft, slots=placed.slots, cache_type=placed.cache_type, ctx_size=placed.ctx_size)


def differences(wished: PlanDraft, made: PlanDraft, movable: Movable) -> tuple[tuple[str, str], ...]:
    """Names of the steps between two drafts, each in words."""
    found = []
    if made.slots != wished.slots:
        found.append(("slots", f"{made.slots} of {wished.slots} slots"))
    if made.cache_type != wished.cache_type:
        found.append(("cache_type", f"KV cache in {made.cache_type} instead of {wished.cache_type}"))
    if made.ctx_size != wished.ctx_size:
        found.append(("ctx_size", f"{made.ctx_size} of {wished.ctx_size} tokens a request"))
    if made.n_cpu_moe != wished.n_cpu_moe:
        found.append(
            ("experts_to_cpu", f"experts of {made.n_cpu_moe} of {movable.expert_layers} layers in host memory")
        )
    if made.devices == () and wished.devices != ():
        found.append(("cpu", "no device, all on the CPU"))
    elif movable.layers is not None and (made.n_gpu_layers or movable.layers) < (wished.n_gpu_layers or movable.layers):
        found.append(("n_gpu_layers", f"{made.n_gpu_layers} of {movable.layers} layers on devices"))
    return tuple(found)
