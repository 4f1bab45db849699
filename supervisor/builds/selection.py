"""Which build a model gets; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from supervisor.builds.inspect import FoundBuild
from supervisor.builds.standing import GOOD, Advice


@dataclass(frozen=True, slots=True)
class Selection:
    """The build, None if there is none; and (name, reason) of each one that was passed over.

    ``warning``: what speaks against a build that is taken because it is pinned.
    """

    build: FoundBuild | None
    reasons: tuple[tuple[str, str], ...] = ()
    warning: str | None = None


def _nothing_known(_build: FoundBuild) -> Advice:
    return GOOD


def choose(
    builds: Sequence[FoundBuild],
    pinned: str | None = None,
    devices: Collection[str] = (),
    *,
    preferred: str | None = None,
    advice: Callable[[FoundBuild], Advice] = _nothing_known,
) -> Selection:
    """The first build in order that can be used, or the pinned one.

    Args:
        builds: of one engine, in order of preference.
        pinned: name of the only build to take, also with a problem or set aside: the owner said so. Only a missing
            file stops it.
        devices: device names that the model asks for; a build that lists them goes before one whose devices are not
            known, and one that lists others only is passed over.
        preferred: name of the build that an operator put first; it is taken as if pinned, where it is there.
        advice: what is held against a build; of those that are a last resort the first is taken if there is no other.
    """
    if pinned is not None:
        return _pinned(builds, pinned, advice, "the config")
    if preferred is not None:
        selection = _pinned(builds, preferred, advice, "an operator")
        if selection.build is not None:
            return selection
    reasons: list[tuple[str, str]] = []
    resorts: list[tuple[bool, FoundBuild]] = []
    for build in builds:
        advised = advice(build)
        reason = build.problem or _lacking(build, devices) or advised.refused
        unsure = bool(devices) and build.facts.devices is None
        if reason is None and not unsure and advised.last_resort is None:
            return Selection(build, tuple(reasons))
        if reason is None:
            resorts.append((advised.last_resort is not None, build))
        reasons.append((build.name, reason or advised.last_resort or "it did not say which devices it has"))
    if not resorts:
        return Selection(None, tuple(reasons))
    # One whose devices are not known goes before one that something is held against.
    chosen = min(resorts, key=lambda resort: resort[0])[1]
    return Selection(chosen, tuple(entry for entry in reasons if entry[0] != chosen.name))


def _pinned(builds: Sequence[FoundBuild], name: str, advice: Callable[[FoundBuild], Advice], who: str) -> Selection:
    build = next((build for build in builds if build.name == name), None)
    if build is None:
        known = ", ".join(build.name for build in builds) or "none"
        return Selection(None, ((name, f"there is no build of this name; known: {known}"),))
    if build.missing:
        return Selection(None, ((name, build.problem or "its executable isn't there"),))
    advised = advice(build)
    against = build.problem or advised.refused or advised.last_resort
    return Selection(
        build, warning=f"build {name} is used because {who} pins it, although: {against}" if against else None
    )


def _lacking(build: FoundBuild, devices: Collection[str]) -> str | None:
    if build.facts.devices is None:
        return None
    listed = [device.id for device in build.facts.devices]
    lacking = [device for device in devices if device not in listed]
    if not lacking:
        return None
    return f"it has no device {', '.join(lacking)}; it lists: {', '.join(listed) or 'none'}"
