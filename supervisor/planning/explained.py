"""The choices of a plan in words for the owner. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engines.contract import Choice, LaunchPlan, Movable, PlanDraft, Tried
from supervisor.errors import PlanError
from supervisor.host.pools import HOST_POOL
from supervisor.planning.placement import Offer
from supervisor.planning.scales import Scales, Weighed, caps_in_words, in_words
from supervisor.units import format_size


def place_choices(offer: Offer, movable: Movable, weighed: Weighed, scales: Scales) -> Iterator[Choice]:
    """Devices, layers, split and experts."""
    draft = weighed.draft
    value = None if draft.devices is None else list(draft.devices)
    yield Choice("devices", value, _devices(offer, draft))
    yield Choice("n_gpu_layers", draft.n_gpu_layers, _layers(offer, movable, weighed, scales))
    if draft.tensor_split:
        parts = ", ".join(
            f"{layers} layers on {device}, which has {format_size(scales.device_room(device))}"
            for device, layers in zip(draft.devices or (), draft.tensor_split, strict=True)
        )
        yield Choice("tensor_split", list(draft.tensor_split), f"by what each has room for: {parts}")
    if draft.n_cpu_moe:
        reason = "the experts of the first layers lie in host memory: few of them work for any one token"
        yield Choice("n_cpu_moe", draft.n_cpu_moe, reason)


def _devices(offer: Offer, draft: PlanDraft) -> str:
    used = draft.devices or ()
    if not offer.devices or offer.named:
        return offer.why
    if not used:
        return f"{offer.why}, and what can be given up does not make it fit there"
    if len(used) < len(offer.devices):
        return f"{offer.why}; {used[0]} has the most room, and one device alone is quickest"
    return offer.why if len(used) == 1 else f"{offer.why}; no device alone has the room"


def _layers(offer: Offer, movable: Movable, weighed: Weighed, scales: Scales) -> str:
    draft = weighed.draft
    if not draft.devices:
        return "no device to put layers on" if draft.devices == () else "left to the engine"
    if offer.layers is not None:
        return "from the config"
    if movable.layers is None or draft.n_gpu_layers is None:
        return "all of them: the header does not say how many there are"
    devices = {scales.pool_of(device) for device in draft.devices}
    sizes = [(weighed.needed.get(pool), scales.budget(pool), pool) for pool in sorted(devices)]
    pools_too = (f"{format_size(need)} of {format_size(budget)} in {pool}" for need, budget, pool in sizes)
    room = ", ".join((*caps_in_words(weighed), *pools_too))
    if draft.n_gpu_layers >= movable.layers:
        return f"all {movable.layers}, the output among them: {room}"
    return f"of {movable.layers}, the output among them; more do not fit: {room}"


def with_sizes(choices: Iterable[Choice], draft: PlanDraft) -> Iterator[Choice]:
    """Context, slots and KV type as they came out."""
    for choice in choices:
        value = getattr(draft, choice.choice)
        if value == choice.value:
            yield choice
        else:
            yield Choice(
                choice.choice, value, f"less than the {choice.value} wished ({choice.reason}), to take less memory"
            )


def memory_choice(weighed: Weighed, scales: Scales, *, allow_paging: bool) -> Choice:
    """Whether it fits, with the numbers; what is not known counts as fitting, and is said."""
    total = sum(part.total or 0 for part in weighed.memory.values())
    words = in_words(weighed, scales)
    unknown = [pool for pool in weighed.needed if scales.budget(pool) is None]
    verdict = "fits" if weighed.fits else "does not fit"
    if unknown:
        verdict += f"; how much there is in {', '.join(unknown)} is not known, so it was not compared"
    host = weighed.memory.get(HOST_POOL)
    if allow_paging and host is not None and host.mapped:
        verdict += f"; allow_paging is set, so {format_size(host.mapped)} of mapped weights are not counted"
    return Choice("memory", format_size(total), f"{words}: {verdict}")


def does_not_fit(plan: LaunchPlan) -> PlanError:
    """The error with the table of what each step needed and what there was."""
    why = next(choice.reason for choice in plan.rationale if choice.choice == "memory")
    tried = [f"{row.step}: {_row(row)}" for row in plan.attempts[:-1]]
    table = f" Tried before: {'. '.join(tried)}." if tried else ""
    kept = [f"{choice.value} {choice.reason}" for choice in plan.rationale if choice.choice == "kept"]
    closed = f" Kept: {'; '.join(kept)}." if kept else ""
    return PlanError(
        "does_not_fit",
        f"{plan.model_id} does not fit: {why}.{table}{closed} Free memory, choose a smaller file, or set a smaller "
        "launch.ctx_size; `enginehouse plan` shows the whole arithmetic.",
        model=plan.model_id,
        steps=[{"step": row.step, "needed": dict(row.needed), "budget": dict(row.budget)} for row in plan.attempts],
    )


def _row(attempt: Tried) -> str:
    budgets = ((pool, size, attempt.budget[pool]) for pool, size in attempt.needed.items())
    short = [(pool, size, budget) for pool, size, budget in budgets if budget is not None and size > budget]
    return ", ".join(f"{format_size(size)} of {format_size(budget)} in {pool}" for pool, size, budget in short)
