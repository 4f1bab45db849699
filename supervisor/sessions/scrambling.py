"""Requests whose slots the engine chooses: afterwards it is asked which ones it took, and the others are as they were.

It is asked before the first of them is sent, and after the last one has ended; a slot that tells of the same use both
times was not used in between. Until then nothing is saved, restored or expected. Where the engine does not say, or may
still be at work, nobody knows what idle slots hold.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.sessions.calls import ask_uses
from supervisor.sessions.conversation import Talk, Touch
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.turn import COLD, NoTurn, Turn, TurnEnd

Later = Callable[..., object]


async def scramble(page: LaunchSlots, talk: Talk, tell: Callable[[str], None], later: Later | None) -> Turn | NoTurn:
    """A turn that is sent nowhere in particular.

    Args:
        page: of its launch.
        talk: what it is.
        tell: told the outcome, if it makes text.
        later: starts what nobody waits for; None: nobody can, and idle slots are forgotten.
    """
    page.scrambling += 1  # from here on nothing is saved or restored
    page.scrambles += 1
    try:
        async with page.looking:
            if page.before is None:
                page.before = await ask_uses(page.launch, page.slots) if page.holdings and later is not None else {}
    except BaseException:
        _end(page, None)
        raise

    def ended(_turn: Turn, end: TurnEnd) -> None:
        _end(page, later if end.answered else None)

    return _Scrambled(page, tell if talk is not Touch.ANY else _tell_nobody, ended)


async def look_again(page: LaunchSlots) -> None:
    """Where requests have scrambled slots, and are over: find out which."""
    if not page.is_unsure:
        return
    async with page.looking:
        before, scrambles = page.before, page.scrambles
        if before is None or page.scrambling:
            return
        after = await ask_uses(page.launch, page.slots) if before and page.holdings else {}
        if page.scrambles != scrambles:
            return  # another one came: it is for its end to tell
        page.before = None
        for slot in [slot for slot in page.holdings if slot not in page.active]:
            if slot not in before or slot not in after or before[slot] != after[slot]:
                page.put(slot, None)


def _end(page: LaunchSlots, later: Later | None) -> None:
    page.scrambling -= 1
    if later is None:
        page.scramble()
    elif not page.scrambling:
        later(look_again, page)


def _tell_nobody(_outcome: str) -> None:
    """Texts to embed and their like are no conversations."""


class _Scrambled(Turn):
    """Listens to what the engine had of the prompt, and pins nothing."""

    def __init__(self, page: LaunchSlots, tell: Callable[[str], None], ended: Callable[[Turn, TurnEnd], None]) -> None:
        super().__init__(page.slots, 0, (COLD, 0), tell, ended)

    def pinned(self, payload: bytes) -> bytes:
        """As it is."""
        return payload
