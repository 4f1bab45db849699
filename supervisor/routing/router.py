"""From the name in a request to the model that serves it."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from engines.contract import Capability
from supervisor.errors import ModelError
from supervisor.models.catalog import Catalog, ModelEntry

# The first scan of a model folder on a cold disk; beyond it the caller hears that the daemon is still starting.
_FIRST_SCAN_SECONDS = 30.0


# A name is repeated in the answer so that its typo is seen; a whole page is not.
_LONGEST_SHOWN = 100


class Router:
    """Resolves names against the catalog; empty until ``use`` has given it one."""

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._first = anyio.Event()

    @property
    def catalog(self) -> Catalog | None:
        """The catalog in use; None before the first scan has ended."""
        return self._catalog

    def use(self, catalog: Catalog) -> None:
        """Replace the catalog."""
        self._catalog = catalog
        self._first.set()

    async def ready(self) -> None:
        """Wait for the first catalog, within a bound; ``resolve`` says so if it did not come."""
        if self._catalog is not None:
            return
        with anyio.move_on_after(_FIRST_SCAN_SECONDS):
            await self._first.wait()

    def find(self, name: str, visible: Callable[[ModelEntry], bool] | None = None) -> ModelEntry:
        """The model that ``name`` stands for, broken or not; one that isn't ``visible`` isn't there.

        Raises:
            ModelError: ``models_unknown`` (the first scan runs), ``model_not_found`` with the nearest name.
        """
        if self._catalog is None:
            raise ModelError("models_unknown", "the models are still being looked for; try again", retry_after=2.0)
        entry = self._catalog.resolve(name)
        if entry is None or (visible is not None and not visible(entry)):
            near = self._catalog.nearest(name, visible)
            hint = f" Did you mean {near!r}?" if near else " GET /v1/models lists what there is."
            shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…"
            raise ModelError("model_not_found", f"there is no model {shown!r}.{hint}", model=shown, nearest=near)
        return entry

    def resolve(
        self, name: str, capability: Capability, visible: Callable[[ModelEntry], bool] | None = None
    ) -> ModelEntry:
        """The model that serves ``capability`` under ``name``; one that isn't ``visible`` isn't there.

        Raises:
            ModelError: as ``find``; ``model_broken`` with the reason, ``capability_not_served`` with what it serves.
        """
        entry = self.find(name, visible)
        if entry.broken is not None:
            raise ModelError("model_broken", f"model {entry.id!r} can't be served: {entry.broken}", model=entry.id)
        if capability not in entry.serves:
            served = ", ".join(sorted(entry.serves))
            raise ModelError(
                "capability_not_served",
                f"model {entry.id!r} does not serve {capability}; it serves {served} (`serves` in its config).",
                model=entry.id,
                serves=served,
            )
        return entry
