"""Where a request stands in the queue: on whose account, in which lane, with which weight. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.config.sections import Lane
from supervisor.errors import CallerError
from supervisor.gateway.caller import Caller

PRIORITY_HEADER = "x-enginehouse-priority"
# Read in this order; the second is Open WebUI's.
USER_HEADERS = ("x-enginehouse-user", "x-openwebui-user-id")
_LANES: Mapping[str, Lane] = {"interactive": "interactive", "background": "background"}
_LONGEST_USER = 128


@dataclass(frozen=True, slots=True)
class Standing:
    """What the broker shares the service by."""

    account: str
    lane: Lane = "interactive"
    weight: float = 1.0


def standing_of(caller: Caller, headers: Mapping[str, str]) -> Standing:
    """The caller's account, divided into its users where it is trusted to name them; never above its own lane.

    Raises:
        CallerError: ``invalid_request``: the priority is no lane.
    """
    said = headers.get(PRIORITY_HEADER)
    lane: Lane = "interactive"
    if said is not None:
        named = _LANES.get(said.strip().lower())
        if named is None:
            raise CallerError(
                "invalid_request",
                f"`{PRIORITY_HEADER}` is interactive or background.",
                param=PRIORITY_HEADER,
            )
        lane = named
    if caller.max_lane == "background":
        lane = "background"
    return Standing(_account(caller, headers), lane, caller.weight)


def _account(caller: Caller, headers: Mapping[str, str]) -> str:
    if caller.trusted:
        for name in USER_HEADERS:
            user = headers.get(name, "").strip()
            if user and user.isprintable():
                return f"{caller.name}/{user[:_LONGEST_USER]}"
    return caller.name
