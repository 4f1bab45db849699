"""Builds as an operator sees and handles them: list, inspect, clear, pin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.builds.health import BuildBook
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.shelf import BuildShelf
from supervisor.builds.standing import OperatorClear
from supervisor.clock import Clock
from supervisor.errors import PlanError
from supervisor.gateway.status_document import build_row


class BuildControl:
    """What ``/admin/v1/builds`` and the command ``builds`` do.

    Args:
        changed: called when a build may be used that could not: who had given up may try again.
    """

    def __init__(
        self, shelf: BuildShelf, book: BuildBook, clock: Clock, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._shelf = shelf
        self._book = book
        self._clock = clock
        self._changed = changed

    def rows(self) -> list[dict[str, Any]]:
        """All builds, as in the status."""
        return [self._row(build) for build in self._shelf.builds()]

    def inspect(self, name: str) -> dict[str, Any]:
        """One build, by its name or fingerprint, or the beginning of one.

        Raises:
            PlanError: ``build_not_found``: none, or several.
        """
        return self._row(self._find(name))

    def clear(self, name: str) -> dict[str, Any]:
        """Forget what is held against a build; how it is then.

        Raises:
            PlanError: ``build_not_found``.
        """
        build = self._find(name)
        self._book.happened(build, OperatorClear(self._clock.wall()))
        self._changed()
        return self._row(build)

    def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Prefer a build for its engine, also while it is set aside, or no longer.

        Raises:
            PlanError: ``build_not_found``.
        """
        build = self._find(name)
        if on or self._book.pinned(build.engine) == build.name:
            self._book.pin(build.engine, build.name if on else None)
            self._changed()
        return self._row(build)

    def _row(self, build: FoundBuild) -> dict[str, Any]:
        pinned = self._book.pinned(build.engine) == build.name
        return build_row(build, self._book.standing(build), pinned=pinned)

    def _find(self, name: str) -> FoundBuild:
        builds = self._shelf.builds()
        found = [build for build in builds if build.name == name]
        found = found or [build for build in builds if f"{build.engine.value}/{build.name}" == name]
        found = found or [
            build for build in builds if build.name.startswith(name) or (build.fingerprint or "").startswith(name)
        ]
        if len(found) != 1:
            known = ", ".join(build.name for build in builds) or "none"
            what = "several builds match" if found else "no build is called"
            raise PlanError("build_not_found", f"{what} {name!r}; there are: {known}.", build=name)
        return found[0]
