"""The models and the running engines as Ollama's API lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from supervisor.errors import ModelError
from supervisor.gateway.caller import Caller
from supervisor.gateway.ports import ModelCard
from supervisor.gateway.translate.ollama_request import spellings, tagged

_HOST_POOL = "host"
_PICTURES = "images"
_RUNNING = frozenset({"ready", "unresponsive"})
_CAPABILITIES = {"chat": ("completion", "tools"), "embeddings": ("embedding",)}


class Listings:
    """Puts them together when they are asked for; ``status`` is the document of ``/admin/v1/status``."""

    def __init__(self, models: Callable[[], Sequence[ModelCard]], status: Callable[[], dict[str, Any]]) -> None:
        self._models = models
        self._status = status

    def tags(self, caller: Caller) -> dict[str, Any]:
        """Every model that the caller may ask for in this API, which knows no pictures."""
        listed = [card for card in self._seen_by(caller) if not card.unlisted and set(card.capabilities) != {_PICTURES}]
        return {"models": [{**_row(card), "size": card.file_bytes} for card in listed]}

    def running(self, caller: Caller) -> dict[str, Any]:
        """Every model that runs, with the memory that the status says of it."""
        instances = {row["model"]: row for row in self._status().get("instances", ()) if row["state"] in _RUNNING}
        rows = [
            {**_row(card), **_memory(instances[card.id]), "expires_at": None, "context_length": card.context_length}
            for card in self._seen_by(caller)
            if card.id in instances
        ]
        return {"models": rows}

    def show(self, caller: Caller, name: str) -> dict[str, Any]:
        """What is known of one model; its context is what one request may use.

        Raises:
            ModelError: ``model_not_found``.
        """
        card = self.find(caller, name)
        family = card.architecture or "unknown"
        facts = {
            "general.architecture": card.architecture,
            "general.parameter_count": card.parameter_count,
            f"{family}.context_length": card.context_length,
        }
        return {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": _details(card),
            "model_info": {key: value for key, value in facts.items() if value is not None},
            "capabilities": [word for kind in card.capabilities for word in _CAPABILITIES.get(kind, (kind,))],
            "modified_at": _time(card.created),
        }

    def find(self, caller: Caller, name: str) -> ModelCard:
        """The model of this name, with or without its tag.

        Raises:
            ModelError: ``model_not_found``.
        """
        for spelling in spellings(name):
            for card in self._seen_by(caller):
                if spelling == card.id or spelling in card.aliases:
                    return card
        raise ModelError("model_not_found", f"there is no model {name[:100]!r}; GET /api/tags lists what there is.")

    def _seen_by(self, caller: Caller) -> list[ModelCard]:
        return [card for card in self._models() if card.broken is None and caller.sees(card.id, card.aliases)]


def _row(card: ModelCard) -> dict[str, Any]:
    name = tagged(card.id)
    # A digest of the whole file would take seconds to make; clients want a text here.
    return {
        "name": name,
        "model": name,
        "modified_at": _time(card.created),
        "digest": "",
        "details": _details(card),
    }


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": card.format,
        "family": card.architecture,
        "families": [card.architecture] if card.architecture else [],
        "parameter_size": _in_words(card.parameter_count),
        "quantization_level": card.quantization,
    }


def _memory(row: dict[str, Any]) -> dict[str, Any]:
    """Bytes of all pools, and of those that are no host's: seen, else declared, else predicted."""
    pools = {
        pool: next((part[key] for key in ("observed", "declared", "predicted") if part.get(key) is not None), None)
        for pool, part in (row.get("memory") or {}).items()
    }
    known = {pool: size for pool, size in pools.items() if size is not None}
    if not known:
        return {"size": None, "size_vram": None}
    return {"size": sum(known.values()), "size_vram": sum(size for pool, size in known.items() if pool != _HOST_POOL)}


def _in_words(count: int | None) -> str:
    if count is None:
        return ""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
