"""What a reload changes: fields with their class of change, and the models that they touch. Pure.

Whether a change applies at once, at an engine's next launch or at a restart of the daemon is read from the schema's
``applies``. A value that came from the environment, and every value of an ``env``, is never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engines.contract import EngineKind, LaunchSettings
from supervisor.config.fields import Section
from supervisor.config.forms import Applies, applies, shown
from supervisor.config.problems import Where, path_text
from supervisor.config.schema import Config, DeviceConfig, ModelConfig

Kind = Literal["changed", "added", "removed"]
_SectionT = TypeVar("_SectionT", bound=Section)


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that is different.

    Attributes:
        where: its place; entries of ``auth.callers`` and ``builds`` stand by their names.
        kind: ``added`` and ``removed`` are said of a whole model, caller or build, or of one variable of an ``env``.
        old, new: as a file writes them; of a launch setting None means that it isn't written.
        hidden: the values may not be shown; ``old`` and ``new`` are None.
    """

    where: Where
    applies: Applies
    kind: Kind = "changed"
    old: Any = None
    new: Any = None
    hidden: bool = False

    @property
    def path(self) -> str:
        """``models.qwen.launch.ctx_size``."""
        return path_text(self.where)

    def document(self) -> dict[str, Any]:
        """For JSON; without ``old`` and ``new`` where there is nothing to show."""
        facts: dict[str, Any] = {"path": self.path, "change": self.kind, "applies": self.applies.value}
        if self.kind == "changed" and not self.hidden:
            facts |= {"old": self.old, "new": self.new}
        return facts


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Everything that a reload changes.

    Attributes:
        changes: in the order of the schema.
        models_added, models_removed: sections under ``models``. One that is added may describe a model that was
            found by itself before and has an instance already; one that is removed may be found again.
        models_for_launch: in both configs, and launched differently from now on.
        models_live: in both, and changed in their section only in what applies at once.
        engines_for_launch: models of these engines that have no section are launched differently from now on.
    """

    changes: tuple[FieldChange, ...] = ()
    models_added: frozenset[str] = frozenset()
    models_removed: frozenset[str] = frozenset()
    models_for_launch: frozenset[str] = frozenset()
    models_live: frozenset[str] = frozenset()
    engines_for_launch: frozenset[EngineKind] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def needs_restart(self) -> tuple[str, ...]:
        """Paths that changed and wait for a restart of the daemon; everything else is applied without them."""
        return tuple(change.path for change in self.changes if change.applies == Applies.RESTART)

    def touches_launch(self, model: str, engine: EngineKind, *, configured: bool) -> bool:
        """Whether an instance of this model runs with something that is different now.

        ``configured``: the model has a section in the new config. Without one, its engine's changes decide.
        """
        if configured:
            return model in self.models_for_launch or model in self.models_added
        return engine in self.engines_for_launch or model in self.models_removed

    def document(self) -> dict[str, Any]:
        """The answer of a reload, for JSON."""
        return {
            "changed": bool(self),
            "changes": [change.document() for change in self.changes],
            "models": {
                "added": sorted(self.models_added),
                "removed": sorted(self.models_removed),
                "changed_for_launch": sorted(self.models_for_launch),
                "changed_live": sorted(self.models_live),
            },
            "needs_restart": list(self.needs_restart),
        }


def diff(old: Config, new: Config, hidden: frozenset[Where] = frozenset()) -> ConfigDiff:
    """What is different in ``new``.

    A change of ``model_dirs`` is reported and touches no model by itself: which file a relative name means is only
    known after the next look at the folders, so whoever applies it compares the catalog's entries.

    ``hidden``: places whose values came from the environment, of both configs (``LoadedConfig.from_env``).
    """
    changes = tuple(_hide(change, hidden) for change in _section((), old, new))
    shared = _Shared(old, new, tuple(change for change in changes if change.where[0] != "models"))
    own = [change for change in changes if change.where[0] == "models"]
    both = frozenset(old.models) & frozenset(new.models)
    # Launch settings are compared as they are merged: writing out what held before changes nothing.
    written = {change.where[1] for change in own if _before_launch(change) and change.where[2:3] != ("launch",)}
    touched = frozenset(name for name in both if name in written or shared.touch(old.models[name], new.models[name]))
    live = frozenset(str(change.where[1]) for change in own if change.applies == Applies.LIVE)
    bare = {kind: ModelConfig(engine=kind) for kind in new.engines}
    return ConfigDiff(
        changes=changes,
        models_added=frozenset(new.models) - both,
        models_removed=frozenset(old.models) - both,
        models_for_launch=touched,
        models_live=(live & both) - touched,
        engines_for_launch=frozenset(kind for kind, model in bare.items() if shared.touch(model, model)),
    )


def after_reload(old: Config, new: Config) -> Config:
    """The config to hold after a reload: ``new``, with what only a restart changes as it is in ``old``.

    The difference between the two stays visible: the next ``diff`` against the file reports it again.
    """
    return _held_back(old, new)


def _held_back(old: _SectionT, new: _SectionT) -> _SectionT:
    kept: dict[str, Any] = {}
    for name, field in type(new).model_fields.items():
        was, now = getattr(old, name), getattr(new, name)
        if was == now:
            continue
        if isinstance(now, Section):
            kept[name] = _held_back(was, now)
        elif name == "models":
            kept[name] = {key: _held_back(was[key], model) if key in was else model for key, model in now.items()}
        elif applies(field) == Applies.RESTART:
            kept[name] = was
    return new.model_copy(update=kept)


def _before_launch(change: FieldChange) -> bool:
    return change.applies == Applies.NEXT_LAUNCH


@dataclass(frozen=True, slots=True)
class _Shared:
    """What models have in common: the machine, and their engine. ``changes`` are those outside ``models``."""

    old: Config
    new: Config
    changes: tuple[FieldChange, ...]

    def touch(self, was: ModelConfig, now: ModelConfig) -> bool:
        """Whether the machine, the engine or the merged launch settings of a model are different."""
        if _merged(self.old, was) != _merged(self.new, now):
            return True
        return any(
            change.where[0] in ("host", "concessions")
            or (change.where[:2] == ("engines", now.engine.value) and _of_engine(change, now.build))
            for change in self.changes
            if _before_launch(change)
        )


def _of_engine(change: FieldChange, build: str | None) -> bool:
    """Whether a model sees this change of its engine; one that names its build sees no other build."""
    part = change.where[2]
    if part == "builds":
        return build is None or change.where[3:4] == (build,)
    return part != "defaults"


def _merged(config: Config, model: ModelConfig) -> LaunchSettings:
    defaults = config.engines[model.engine].defaults
    return defaults.model_copy(update={name: getattr(model.launch, name) for name in model.launch.model_fields_set})


def _hide(change: FieldChange, hidden: frozenset[Where]) -> FieldChange:
    """Lists are hidden as a whole: positions in the file say nothing of the names that stand for them here."""
    for place in hidden:
        whole = next((place[:end] for end, step in enumerate(place) if isinstance(step, int)), place)
        shorter = min(len(whole), len(change.where))
        if whole[:shorter] == change.where[:shorter]:
            return replace(change, old=None, new=None, hidden=True)
    return change


def _section(where: Where, old: BaseModel, new: BaseModel) -> Iterator[FieldChange]:
    for name, field in type(new).model_fields.items():
        was, now = getattr(old, name), getattr(new, name)
        yield from _value((*where, name), field, was, now)


def _value(where: Where, field: FieldInfo, old: Any, new: Any) -> Iterator[FieldChange]:
    if isinstance(new, LaunchSettings):
        yield from _settings(where, field, old, new)
    elif isinstance(new, Section):
        yield from _section(where, old, new)
    elif isinstance(new, Mapping):
        yield from _mapping(where, field, old, new)
    elif any(isinstance(entry, Section) for entry in (*_entries(old), *_entries(new))):
        yield from _named(where, field, old, new)
    elif old != new:
        yield FieldChange(where, applies(field), old=shown(field, old), new=shown(field, new))


def _entries(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _settings(where: Where, field: FieldInfo, old: Any, new: LaunchSettings) -> Iterator[FieldChange]:
    """Launch settings know "not written" apart from "auto": the first takes the engine's default."""
    if old == new and old.model_fields_set == new.model_fields_set:
        return
    if type(old) is not type(new):
        if old.model_fields_set or new.model_fields_set:
            yield FieldChange(where, applies(field), old=shown(field, old), new=shown(field, new))
        return
    for name, setting in type(new).model_fields.items():
        was, now = ((name in settings.model_fields_set, getattr(settings, name, None)) for settings in (old, new))
        if was != now:
            texts = [shown(setting, value) if written else None for written, value in (was, now)]
            yield FieldChange((*where, name), applies(setting), old=texts[0], new=texts[1])


def _mapping(where: Where, field: FieldInfo, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Iterator[FieldChange]:
    """Sections by name, files by role, variables by name (whose values are never shown)."""
    for key in dict.fromkeys((*old, *new)):
        place = (*where, str(key.value if isinstance(key, EngineKind) else key))
        was, now = old.get(key), new.get(key)
        if isinstance(was or now, DeviceConfig):
            yield from _section(place, was or DeviceConfig(), now or DeviceConfig())
        elif isinstance(was, Section) and isinstance(now, Section):
            yield from _section(place, was, now)
        elif key not in old or key not in new:
            yield FieldChange(place, applies(field), "removed" if key in old else "added")
        elif was != now:
            change = FieldChange(place, applies(field), hidden=not field.repr)
            yield change if change.hidden else replace(change, old=shown(field, was), new=shown(field, now))


def _named(where: Where, field: FieldInfo, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[FieldChange]:
    """A list whose entries have names, or are words such as ``auto``; their order means something."""
    was, now = ({_name(entry): entry for entry in entries} for entries in (old, new))
    for name in dict.fromkeys((*was, *now)):
        if name not in was or name not in now:
            yield FieldChange((*where, name), applies(field), "removed" if name in was else "added")
        elif isinstance(was[name], Section) and isinstance(now[name], Section):
            yield from _section((*where, name), was[name], now[name])
    kept = [[name for name in names if name in was and name in now] for names in (was, now)]
    if kept[0] != kept[1]:
        yield FieldChange(where, applies(field), old=list(was), new=list(now))


def _name(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry.name)
