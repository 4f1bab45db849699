"""What the owner may have meant: the keys that are valid at a place, the nearest one, and where else a key exists."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from engines.contract import EngineKind, LaunchSettings
from supervisor.config.problems import Where, path_text
from supervisor.config.schema import Config, settings_type

_ANY_NAME = "*"
_CUTOFF = 0.6


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that looks most like ``word``; None when none does."""
    flat = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), list(flat), n=1, cutoff=_CUTOFF)
    return flat[close[0]] if close else None


def suggest_key(where: Where, tree: Any) -> str | None:
    """Advice for an unknown key: its name elsewhere in the config, or the nearest name here."""
    key = where[-1]
    if not isinstance(key, str):
        return None
    known = keys_at(where[:-1], tree)
    close = nearest(key, known)
    elsewhere = _elsewhere(where)
    below = elsewhere is not None and elsewhere[: len(where) - 1] == where[:-1]
    if elsewhere is not None and (below or close is None):
        return f"write it as {path_text(elsewhere)}"
    if close is not None:
        return f"did you mean {close}?"
    return f"known here: {', '.join(known)}" if known else None


def keys_at(where: Where, tree: Any) -> list[str]:
    """Keys that a config may hold at a place, in the order of the schema."""
    shapes: list[Any] = [Config]
    for end, step in enumerate(where):
        shapes = [shape for old in shapes for shape in _below(old, step)]
        if LaunchSettings in shapes:
            shapes = [settings_type(_engine_of(where[: end + 1], tree))]
    models = [shape for shape in shapes if isinstance(shape, type) and issubclass(shape, BaseModel)]
    return [name for model in models for name in model.model_fields]


def _engine_of(where: Where, tree: Any) -> EngineKind:
    """The engine whose settings are at ``engines.KIND.defaults`` or ``models.NAME.launch``."""
    named: Any = where[1]
    if where[0] == "models":
        try:
            named = tree["models"][where[1]]["engine"]
        except (KeyError, TypeError):
            named = EngineKind.LLAMA_CPP
    try:
        return EngineKind(named)
    except ValueError:
        return EngineKind.LLAMA_CPP


def _shapes(annotation: Any) -> list[Any]:
    """The alternatives of a type without Annotated, Optional and aliases."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _shapes(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [shape for part in get_args(annotation) for shape in _shapes(part)]
    return [annotation]


def _below(shape: Any, step: str | int) -> list[Any]:
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        field = shape.model_fields.get(step) if isinstance(step, str) else None
        return _shapes(field.annotation) if field is not None else []
    arguments = get_args(shape)
    if get_origin(shape) is dict and isinstance(step, str):
        return _shapes(arguments[1])
    return _shapes(arguments[0]) if get_origin(shape) is tuple and isinstance(step, int) else []


def _elsewhere(where: Where) -> Where | None:
    """The place of this key that has most in common with ``where``, with the names of models that are in ``where``."""
    key, here = where[-1], where[:-1]
    best: tuple[int, Where] | None = None
    for place in _all_places(Config, ()):
        if place[-1] != key:
            continue
        common = 0
        while common < min(len(here), len(place) - 1) and place[common] in (here[common], _ANY_NAME):
            common += 1
        if _ANY_NAME in place[common:]:
            continue
        if best is None or common > best[0]:
            best = (common, (*here[:common], *place[common:]))
    return best[1] if best else None


def _all_places(model: type[BaseModel], at: Where) -> Iterator[Where]:
    for name, field in model.model_fields.items():
        yield (*at, name)
        for shape in _shapes(field.annotation):
            yield from _places_in(shape, (*at, name))


def _places_in(shape: Any, at: Where) -> Iterator[Where]:
    if shape is LaunchSettings:
        engine = EngineKind(str(at[1])) if at[0] == "engines" else EngineKind.LLAMA_CPP
        yield from _all_places(settings_type(engine), at)
    elif isinstance(shape, type) and issubclass(shape, BaseModel):
        yield from _all_places(shape, at)
    elif get_origin(shape) is dict:
        keyed_by, holds = get_args(shape)
        names = [kind.value for kind in EngineKind] if keyed_by is EngineKind else [_ANY_NAME]
        for name in names:
            for inner in _shapes(holds):
                yield from _places_in(inner, (*at, name))
