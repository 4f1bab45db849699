"""What is known of a build, and what can happen to it: the values that ``quarantine`` decides on.

Times are seconds since 1970: what is known outlives the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engines.contract import Verdict

# Starts of one model that end undecided before the canary is asked.
UNDECIDED_STARTS = 2


class BuildHealth(StrEnum):
    """How far a build is trusted."""

    USABLE = "usable"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    PROBATION = "probation"


class Until(StrEnum):
    """What ends a quarantine; an operator always does."""

    BYTES = "bytes"
    HOST = "host"
    COOLDOWN = "cooldown"


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """``supervision.quarantine``: a count, and seconds."""

    strikes: int = 3
    window: float = 3600.0
    cooldown: float = 21600.0


@dataclass(frozen=True, slots=True)
class BuildKey:
    """What a build's standing holds for: other bytes, another driver or other devices begin anew.

    ``env`` is a mark of the build's own variables: with others it loads other libraries.
    """

    fingerprint: str
    env: str
    driver: str
    devices: str

    @property
    def of_bytes(self) -> str:
        """The beginning that keys of the same bytes share."""
        return f"{self.fingerprint}|{self.env}|"

    def __str__(self) -> str:
        return f"{self.of_bytes}{self.driver}|{self.devices}"


@dataclass(frozen=True, slots=True)
class ModelMark:
    """A model as it was tried: ``mark`` changes with its files and its launch settings."""

    model: str
    mark: str


@dataclass(frozen=True, slots=True)
class Strike:
    """One failure that is held against a build; ``model`` is None for the canary, ``log`` its last lines.

    ``launch``: the launch's id, so that it can be taken back.
    """

    at: float
    kind: str
    model: str | None
    why: str
    log: tuple[str, ...] = ()
    launch: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """What happened to one model on the build before it was ever ready.

    Attributes:
        crashes: starts that ended undecided.
        set_aside: when the canary said that it is not the build's fault; None: not, or not yet.
    """

    of: ModelMark
    crashes: tuple[Strike, ...] = ()
    set_aside: float | None = None

    @property
    def in_question(self) -> bool:
        """Whether the canary must say whose fault it was."""
        return self.set_aside is None and len(self.crashes) >= UNDECIDED_STARTS


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is known of one build.

    Attributes:
        since: when it was set aside.
        until: what ends that.
        reason: why it was set aside, in words.
        trial: the model of the launch that it is on trial with.
        checked: the canary has lived on it.
    """

    health: BuildHealth = BuildHealth.USABLE
    strikes: tuple[Strike, ...] = ()
    since: float | None = None
    until: Until | None = None
    reason: str | None = None
    trial: str | None = None
    checked: bool = False
    pairs: tuple[Pair, ...] = field(default=())

    @property
    def in_question(self) -> tuple[Pair, ...]:
        """Pairs that wait for the canary."""
        return tuple(pair for pair in self.pairs if pair.in_question)

    @property
    def all_strikes(self) -> tuple[Strike, ...]:
        """Every failure that speaks against it, undecided ones among them, oldest first."""
        undecided = (crash for pair in self.pairs if pair.set_aside is None for crash in pair.crashes)
        return tuple(sorted(dict.fromkeys((*self.strikes, *undecided)), key=lambda strike: strike.at))


@dataclass(frozen=True, slots=True)
class LaunchBegan:
    """A launch with this build begins."""

    at: float
    model: ModelMark


@dataclass(frozen=True, slots=True)
class LaunchReady:
    """A launch has become ready."""

    at: float
    model: ModelMark


@dataclass(frozen=True, slots=True)
class LaunchGood:
    """A launch that became ready at ``ready_at`` has stayed so for long enough."""

    at: float
    model: ModelMark
    ready_at: float


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A launch ended.

    Attributes:
        verdict: why; None where nothing is held against anybody (as asked, ended by us, or a request's fault).
        was_ready: it had been ready.
        can_check: the engine has a canary, so that what is undecided can be decided.
    """

    at: float
    model: ModelMark
    verdict: Verdict | None
    was_ready: bool
    log: tuple[str, ...] = ()
    can_check: bool = True
    launch: str = ""


@dataclass(frozen=True, slots=True)
class LaunchesExcused:
    """Launches had ended for a request's fault, as was found out afterwards: they strike nobody."""

    at: float
    launches: frozenset[str]


@dataclass(frozen=True, slots=True)
class CanaryLived:
    """The tiny model was loaded."""

    at: float


@dataclass(frozen=True, slots=True)
class CanaryDied:
    """The tiny model was not loaded, and not for want of memory."""

    at: float
    verdict: Verdict
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CooldownOver:
    """The time is over, and there is no canary to ask first."""

    at: float


@dataclass(frozen=True, slots=True)
class OperatorClear:
    """An operator forgets everything."""

    at: float


Happening = (
    LaunchBegan
    | LaunchReady
    | LaunchGood
    | LaunchEnded
    | LaunchesExcused
    | CanaryLived
    | CanaryDied
    | CooldownOver
    | OperatorClear
)


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether a build may be used for a model now.

    Attributes:
        refused: why not; None: it may.
        last_resort: why only where nothing else is left; None: no reason.
    """

    refused: str | None = None
    last_resort: str | None = None


GOOD = Advice()
