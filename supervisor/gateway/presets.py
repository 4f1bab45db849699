"""What a model's config does to the fields of requests that come under one of its names. Pure."""

from __future__ import annotations

from typing import Any

from supervisor.models.catalog import ModelEntry


def apply_preset(entry: ModelEntry, names: tuple[str, ...], body: dict[str, Any]) -> None:
    """Change the body in place, by the preset of the first of the names that has one: strip, default, set."""
    preset = next((entry.presets[name] for name in names if name in entry.presets), None)
    if preset is None:
        return
    for key in preset.strip:
        body.pop(key, None)
    for key, value in preset.default.items():
        body.setdefault(key, value)
    body.update(preset.set)
