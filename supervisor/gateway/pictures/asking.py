"""From a request's fields and pictures to a job: the model, its LoRAs, the wish; all checked before anything starts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from engines.contract import Capability, EngineKind, ModelFileError
from engines.pictures import LoraMisfitError, PictureAbilities, PictureEngine
from supervisor.config.schema import PicturesConfig
from supervisor.errors import CallerError, ModelError
from supervisor.gateway.exchange import Exchange
from supervisor.gateway.pictures.jobs import Job, PictureJobs, new_job_id
from supervisor.gateway.pictures.masks import Mask
from supervisor.gateway.pictures.sources import look_at, look_at_mask
from supervisor.gateway.pictures.wishes import Asked, lora_ids, read_wish, with_loras
from supervisor.gateway.ports import Router
from supervisor.gateway.presets import apply_preset
from supervisor.models.catalog import ModelEntry, nearest_name
from supervisor.models.loras import InstalledLora, read_loras

Engines = Callable[[EngineKind], PictureEngine | None]


@dataclass(frozen=True, slots=True)
class PictureService:
    """What the gateway needs for pictures.

    Attributes:
        known: waits, within a bound, until what the listing shows is known.
        keep: seconds that a picture stays behind its link.
    """

    pictures: Pictures
    known: Callable[[], Awaitable[None]]
    keep: Callable[[], float]


class Pictures:
    """Makes jobs of requests, whichever API they came by."""

    def __init__(
        self, router: Router, jobs: PictureJobs, engines: Engines, limits: Callable[[], PicturesConfig]
    ) -> None:
        self.jobs = jobs
        self._router = router
        self._engines = engines
        self._limits = limits

    async def begin(
        self,
        exchange: Exchange,
        entry: ModelEntry,
        body: Mapping[str, Any],
        sources: Sequence[tuple[str, bytes]] = (),
        mask: Mask | None = None,
        keep_alive: float | None = None,
    ) -> Job:
        """A job that has begun.

        Raises:
            CallerError: what was asked for can't be, and which field says it.
        """
        engine, abilities = self.abilities(entry)
        limits = self._limits()
        most = limits.max_source_pixels
        looked = [await anyio.to_thread.run_sync(look_at, data, where, most) for where, data in sources]
        masked = None if mask is None else await anyio.to_thread.run_sync(look_at_mask, mask, "mask", most)
        asked = read_wish(body, abilities, limits, looked, masked)
        loras, notes = await self._loras(entry, engine, abilities, lora_ids(body))
        asked = with_loras(asked, loras, body)
        return self.jobs.begin(
            Job(
                id=new_job_id(),
                caller=exchange.caller.name,
                entry=entry,
                asked=Asked(asked.wish, (*asked.notes, *notes), asked.skipped, asked.loras),
                exchange=exchange,
                abilities=abilities,
                engine=engine,
                created=time.time(),
                keep_alive=keep_alive,
            )
        )

    async def find(self, exchange: Exchange, name: str, body: dict[str, Any]) -> ModelEntry:
        """The model that draws under this name, its preset applied to the body.

        Raises:
            ModelError: there is none, or it draws nothing.
        """
        await self._router.ready()
        caller = exchange.caller
        entry = self._router.resolve(name, Capability.IMAGES, lambda entry: caller.sees(entry.id, entry.aliases))
        exchange.model = entry.id
        apply_preset(entry, (name,), body)
        return entry

    def abilities(self, entry: ModelEntry) -> tuple[PictureEngine, PictureAbilities]:
        """What draws it, and what it can do.

        Raises:
            ModelError: ``capability_not_served``.
        """
        engine = self._engines(entry.engine)
        if engine is None or entry.metadata is None:
            raise ModelError("capability_not_served", f"model {entry.id!r} draws no pictures.", model=entry.id)
        return engine, engine.abilities(entry.metadata, entry.launch)

    async def _loras(
        self, entry: ModelEntry, engine: PictureEngine, abilities: PictureAbilities, ids: Sequence[str]
    ) -> tuple[list[InstalledLora], list[str]]:
        """Those that are installed and fit; checked here, since one that does not fit ends the engine."""
        if not ids:
            return [], []
        shelf = await anyio.to_thread.run_sync(read_loras, engine.lora_folder(entry.launch))
        found: list[InstalledLora] = []
        notes: list[str] = []
        for name in ids:
            lora = shelf.find(name)
            if lora is None:
                near = nearest_name(name, [one.id for one in shelf.loras])
                hint = f" Did you mean {near!r}?" if near else " /v1/models lists those that there are."
                raise CallerError("lora_not_found", f"No LoRA {name[:100]!r} is installed.{hint}", param="loras")
            if not lora.is_for(abilities.kind, entry.id):
                names = ", ".join(lora.base_models)
                said = f"The LoRA {lora.id!r} is for {names}, and {entry.id} is a {abilities.kind} model."
                raise CallerError("lora_incompatible", said, param="loras")
            if entry.metadata is None:
                raise AssertionError("who draws has metadata")
            try:
                note = await anyio.to_thread.run_sync(engine.check_lora, entry.metadata, lora.file)
            except (LoraMisfitError, ModelFileError) as error:
                said = f"The LoRA {lora.id!r} can't be used with {entry.id}: {error}."
                raise CallerError("lora_incompatible", said, param="loras") from error
            notes += [] if note is None else [f"loras: {note}"]
            found.append(lora)
        return found, notes
