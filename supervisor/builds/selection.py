"""Which build a model gets; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from supervisor.builds.inspect import FoundBuild


@dataclass(frozen=True, slots=True)
class Selection:
    """The build, None if there is none; and (name, reason) of each one that was passed over."""

    build: FoundBuild | None
    reasons: tuple[tuple[str, str], ...] = ()


def choose(builds: Sequence[FoundBuild], pinned: str | None = None, devices: Collection[str] = ()) -> Selection:
    """The first build in order that can be used, or the pinned one.

    Args:
        builds: of one engine, in order of preference.
        pinned: name of the only build to take, also with a problem: the owner said so. Only a missing file stops it.
        devices: device names that the model asks for; a build that lists them goes before one whose devices are not
            known, and one that lists others only is passed over.
    """
    if pinned is not None:
        return _pinned(builds, pinned)
    reasons: list[tuple[str, str]] = []
    unsure: FoundBuild | None = None
    for build in builds:
        reason = build.problem or _lacking(build, devices)
        if reason is not None:
            reasons.append((build.name, reason))
        elif devices and build.facts.devices is None:
            unsure = unsure or build
            reasons.append((build.name, "it did not say which devices it has"))
        else:
            return Selection(build, tuple(reasons))
    if unsure is None:
        return Selection(None, tuple(reasons))
    return Selection(unsure, tuple(entry for entry in reasons if entry[0] != unsure.name))


def _pinned(builds: Sequence[FoundBuild], name: str) -> Selection:
    build = next((build for build in builds if build.name == name), None)
    if build is None:
        known = ", ".join(build.name for build in builds) or "none"
        return Selection(None, ((name, f"there is no build of this name; known: {known}"),))
    if build.missing:
        return Selection(None, ((name, build.problem or "its executable isn't there"),))
    return Selection(build)


def _lacking(build: FoundBuild, devices: Collection[str]) -> str | None:
    if build.facts.devices is None:
        return None
    listed = [device.id for device in build.facts.devices]
    lacking = [device for device in devices if device not in listed]
    if not lacking:
        return None
    return f"it has no device {', '.join(lacking)}; it lists: {', '.join(listed) or 'none'}"
