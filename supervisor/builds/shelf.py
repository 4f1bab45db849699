"""The builds of each engine as they were last looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from engines.contract import EngineKind
from supervisor.builds.catalog import Candidate
from supervisor.builds.inspect import BuildInspector, FoundBuild
from supervisor.clock import Clock

# A build that could not be asked, or answered in part, may hang for its whole time limit: the same bytes are not asked
# again for this long. What was answered whole is kept by the inspector anyway.
_REMEMBERED_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A finding, which holds for the same candidate with the same bytes."""

    candidate: Candidate
    build: FoundBuild
    until: float


class BuildShelf:
    """Lists candidates and has them inspected; decisions read what it last found."""

    def __init__(
        self,
        candidates: Mapping[EngineKind, Callable[[], Sequence[Candidate]]],
        inspector: BuildInspector,
        clock: Clock,
    ) -> None:
        self._candidates = candidates
        self._inspector = inspector
        self._clock = clock
        self._found: dict[EngineKind, tuple[FoundBuild, ...]] = {}
        self._seen: dict[tuple[EngineKind, str], _Seen] = {}

    def builds(self) -> tuple[FoundBuild, ...]:
        """All builds of the last look, in order of preference within each engine."""
        return tuple(build for kind in self._candidates for build in self._found.get(kind, ()))

    def of(self, kind: EngineKind) -> tuple[FoundBuild, ...]:
        """One engine's builds of the last look, in order of preference."""
        return self._found.get(kind, ())

    async def look(self, kind: EngineKind) -> tuple[FoundBuild, ...]:
        """Look again: cheap while no file has changed, since facts are kept by fingerprint."""
        candidates = tuple(self._candidates[kind]())
        found: dict[int, FoundBuild] = {}

        async def inspect(place: int, candidate: Candidate) -> None:
            found[place] = await self._inspect(candidate)

        async with anyio.create_task_group() as tasks:
            for place, candidate in enumerate(candidates):
                tasks.start_soon(inspect, place, candidate)
        self._found[kind] = tuple(found[place] for place in range(len(candidates)))
        return self._found[kind]

    async def look_at_all(self) -> None:
        """Look at every engine's builds."""
        for kind in self._candidates:
            await self.look(kind)

    async def _inspect(self, candidate: Candidate) -> FoundBuild:
        key = (candidate.engine, candidate.name)
        known = self._seen.get(key)
        if (
            known is not None
            and known.candidate == candidate
            and self._clock.monotonic() < known.until
            and known.build.fingerprint == await self._inspector.fingerprint(candidate)
        ):
            return known.build
        build = await self._inspector.inspect(candidate)
        self._seen[key] = _Seen(candidate, build, self._clock.monotonic() + _REMEMBERED_SECONDS)
        return build
