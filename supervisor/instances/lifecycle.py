"""The states of an instance and the triggers between them, as a table. Pure; a trigger the table lacks is a bug.

::

    STOPPED ──start──▶ STARTING ──became_ready──▶ READY ──missed_probes──▶ UNRESPONSIVE
                                                  READY ◀────answered───── UNRESPONSIVE
    STARTING, READY, UNRESPONSIVE ──stop────▶ STOPPING ──exited──▶ STOPPED
    STARTING, READY, UNRESPONSIVE ──exited──▶ BACKOFF
    BACKOFF ──retry──▶ STARTING     BACKOFF ──gave_up──▶ FAILED     BACKOFF ──stop──▶ STOPPED
    FAILED ──start──▶ STARTING      FAILED ──stop──▶ STOPPED

"Start while stopping" is no arrow: whoever wants the instance waits for STOPPED, then starts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class InstanceState(StrEnum):
    """Where an instance is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


class Trigger(StrEnum):
    """What moves it."""

    START = "start"
    BECAME_READY = "became_ready"
    MISSED_PROBES = "missed_probes"
    ANSWERED = "answered"
    STOP = "stop"
    EXITED = "exited"
    RETRY = "retry"
    GAVE_UP = "gave_up"


_S, _T = InstanceState, Trigger
_RUNNING = (_S.STARTING, _S.READY, _S.UNRESPONSIVE)

TRANSITIONS: Mapping[tuple[InstanceState, Trigger], InstanceState] = MappingProxyType(
    {
        (_S.STOPPED, _T.START): _S.STARTING,
        (_S.STARTING, _T.BECAME_READY): _S.READY,
        (_S.READY, _T.MISSED_PROBES): _S.UNRESPONSIVE,
        (_S.UNRESPONSIVE, _T.ANSWERED): _S.READY,
        **{(state, _T.STOP): _S.STOPPING for state in _RUNNING},
        **{(state, _T.EXITED): _S.BACKOFF for state in _RUNNING},
        (_S.STOPPING, _T.EXITED): _S.STOPPED,
        (_S.BACKOFF, _T.RETRY): _S.STARTING,
        (_S.BACKOFF, _T.GAVE_UP): _S.FAILED,
        (_S.BACKOFF, _T.STOP): _S.STOPPED,
        (_S.FAILED, _T.START): _S.STARTING,
        (_S.FAILED, _T.STOP): _S.STOPPED,
    }
)


class ImpossibleTransition(AssertionError):  # noqa: N818  a bug, not an error of the outside
    """A trigger that the table lacks."""


def advance(state: InstanceState, trigger: Trigger) -> InstanceState:
    """The state after ``trigger``.

    Raises:
        ImpossibleTransition: the table has no such arrow.
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise ImpossibleTransition(f"{trigger} while {state}") from None
