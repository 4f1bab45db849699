"""Pictures and sounds for a model that can't read them: refused before anything is started for them."""

from __future__ import annotations

from typing import Any

from supervisor.errors import ModelError
from supervisor.gateway.ports import Generation
from supervisor.gateway.request_body import media_in
from supervisor.models.catalog import ModelEntry


def refuse_unread_media(entry: ModelEntry, generation: Generation, chat: dict[str, Any]) -> None:
    """Let a checked chat pass, unless it has media that the model's engine will not be able to read.

    Raises:
        ModelError: ``capability_not_served``.
    """
    where = media_in(chat)
    if where is not None and not generation.takes_media(entry.launch, entry.metadata):
        raise ModelError(
            "capability_not_served",
            f"model {entry.id!r} reads text only, and `{where}` is a picture, a sound or a file. Ask a model that "
            "reads them; one whose projector (mmproj) is at hand does so once the config names it under `files`.",
            model=entry.id,
            param=where,
        )
