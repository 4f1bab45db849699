"""Engines that find conversations themselves: what they served is remembered, so that a request hears how it fared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from supervisor.events import EventBus
from supervisor.sessions.conversation import Conversation, Touch
from supervisor.sessions.events import SessionServed
from supervisor.sessions.launch_slots import LaunchSlots
from supervisor.sessions.turn import COLD, HIT, RESTORED, Turn, TurnEnd

_REMEMBERED = 64
# More than any prompt has: what was served before is expected to be there as a whole.
_ALL = 2**62


class Recognising:
    """By model, the conversations of the last requests, with the launch that served each."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._served: dict[str, deque[tuple[str, Conversation]]] = {}

    def begin(
        self, page: LaunchSlots, slot: int, talk: Conversation | Touch, request_id: str, tell: Callable[[str], None]
    ) -> Turn:
        """A turn that is sent nowhere in particular, and listens to what the engine had of the prompt."""

        def ended(turn: Turn, end: TurnEnd) -> None:
            if end.read is None or not isinstance(talk, Conversation):
                return
            launch = page.launch
            served = self._served.setdefault(launch.plan.model_id, deque(maxlen=_REMEMBERED))
            served.append((launch.id, talk))
            facts = (request_id, launch.plan.model_id, launch.instance_id, slot, turn.outcome)
            self._bus.publish(SessionServed(*facts, end.read.cached, end.read.total))

        expected = self._expected(page, talk) if isinstance(talk, Conversation) else COLD
        return Turn(page.slots, slot, (expected, _ALL), tell, ended)

    def _expected(self, page: LaunchSlots, talk: Conversation) -> str:
        before = self._served.get(page.launch.plan.model_id, ())
        launches = {launch for launch, held in before if held.is_continued_by(talk)}
        if page.launch.id in launches:
            return HIT
        return RESTORED if launches else COLD
