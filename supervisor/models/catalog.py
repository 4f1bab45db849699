"""The models by the names that clients ask for: configured ones first, then those that were just found."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.contract import Capability, EngineAdapter, EngineKind, LaunchSettings, ModelMetadata
from supervisor.config.schema import Config, ModelConfig, PresetConfig
from supervisor.events import Event, ModelBroken, ModelFound, ModelNameTaken
from supervisor.models.inventory import FoundModel, NamedParts

_MODEL = "model"  # the role of a file beside which `files` names more
_LONGEST_GUESS = 200  # a longer name is no misspelling, and comparing takes long


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model as it can be asked for.

    Attributes:
        aliases: more names that lead to it.
        settings: the model's own launch settings.
        defaults: those of its engine, under them.
        metadata: None where it is broken.
        broken: why it can't be served, in words for the owner.
        build: name of the build that must be used; None: chosen.
        keep_alive: seconds that it stays when idle; None: for ever.
        presets: what is done to requests, by the name that they come under.
        unlisted: served by name, and in no list.
    """

    id: str
    engine: EngineKind
    files: tuple[Path, ...]
    aliases: tuple[str, ...]
    serves: frozenset[Capability]
    settings: LaunchSettings
    defaults: LaunchSettings
    metadata: ModelMetadata | None
    broken: str | None
    build: str | None
    keep_alive: float | None
    pinned: bool
    preload: bool
    allow_paging: bool
    presets: Mapping[str, PresetConfig] = field(default_factory=dict)
    unlisted: bool = False

    @property
    def launch(self) -> LaunchSettings:
        """The settings for a launch: the model's own, and where it says nothing the engine's defaults."""
        own = {name: getattr(self.settings, name) for name in self.settings.model_fields_set}
        return self.defaults.model_copy(update=own)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models, in the order of the config, then of the folders; ``clashes`` are names that two of them wanted."""

    entries: tuple[ModelEntry, ...] = ()
    clashes: tuple[ModelNameTaken, ...] = ()
    _by_name: Mapping[str, ModelEntry] = field(default_factory=dict, repr=False)

    @property
    def usable(self) -> tuple[ModelEntry, ...]:
        """The models that can be served."""
        return tuple(entry for entry in self.entries if entry.broken is None)

    def resolve(self, name: str) -> ModelEntry | None:
        """The model of this id or alias, broken or not."""
        return self._by_name.get(name)

    def nearest(self, name: str, visible: Callable[[ModelEntry], bool] | None = None) -> str | None:
        """The id or alias of a usable model that ``name`` may have been meant for; of ``visible`` ones only."""
        usable = [known for known, entry in self._by_name.items() if entry.broken is None]
        return nearest_name(name, (known for known in usable if visible is None or visible(self._by_name[known])))

    def events(self) -> tuple[Event, ...]:
        """What there is to say of it: each model found or broken, then the clashes."""
        return (*map(_announcement, self.entries), *self.clashes)


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``name`` may be a misspelling of."""
    known = {known.casefold(): known for known in names}
    close = difflib.get_close_matches(name[:_LONGEST_GUESS].casefold(), known, n=1)
    return known[close[0]] if close else None


def explicit_files(config: Config) -> tuple[tuple[EngineKind, Path], ...]:
    """Every place at which a configured model's file may lie, for ``Inventory.scan``."""
    return tuple(
        (model.engine, place)
        for model in config.models.values()
        if model.file is not None
        for place in _places(config, model.file)
    )


def explicit_parts(config: Config) -> tuple[NamedParts, ...]:
    """Every configured model that comes in parts, for ``Inventory.scan``."""
    return tuple(
        NamedParts(name, model.engine, {role: _places(config, file) for role, file in _roles(model).items()})
        for name, model in config.models.items()
        if model.files
    )


def _roles(model: ModelConfig) -> Mapping[str, Path]:
    """Files by role; what is named as ``file`` is the model itself."""
    return model.files if model.file is None else {_MODEL: model.file, **model.files}


def build_catalog(config: Config, found: Sequence[FoundModel], adapters: Mapping[EngineKind, EngineAdapter]) -> Catalog:
    """The catalog of a config and what ``Inventory.scan`` found with ``explicit_files`` and ``explicit_parts`` of it.

    A found file that a configured model names is not listed again under its own name. Names go to the configured
    models' ids, then to their aliases, then to found models, each in order; who comes later goes without.
    """
    aliases, clashes = _share_aliases(config.models)
    located = {name: _locate(config, name, model, found) for name, model in config.models.items()}
    entries = [
        _entry(config, adapters, name, model, located[name], aliases[name]) for name, model in config.models.items()
    ]
    by_name = {name: entry for entry in entries for name in (entry.id, *entry.aliases)}
    claimed = {
        (place.engine, path) for place in located.values() if isinstance(place, FoundModel) for path in place.files
    }
    for loose in found:
        if loose.named or (loose.engine, loose.path) in claimed:
            continue
        if (holder := by_name.get(loose.id)) is not None:
            kept = str(holder.files[0]) if holder.files else holder.id
            reason = "the first one has the name: rename this file, or name it in the config under another name"
            clashes.append(ModelNameTaken(loose.id, kept, str(loose.path), reason))
            continue
        entry = _entry(config, adapters, loose.id, ModelConfig(engine=loose.engine), loose, ())
        entries.append(entry)
        by_name[loose.id] = entry
    return Catalog(tuple(entries), tuple(clashes), by_name)


def _entry(
    config: Config,
    adapters: Mapping[EngineKind, EngineAdapter],
    name: str,
    model: ModelConfig,
    located: FoundModel | str,
    aliases: tuple[str, ...],
) -> ModelEntry:
    """An entry of a found model, or of the reason why there is none."""
    metadata = located.metadata if isinstance(located, FoundModel) else None
    if model.serves is not None:
        serves = frozenset(model.serves)
    else:
        serves = adapters[model.engine].capabilities(metadata) if metadata is not None else frozenset()
    engine = config.engines.get(model.engine)
    return ModelEntry(
        id=name,
        engine=model.engine,
        files=located.files if isinstance(located, FoundModel) else (),
        aliases=aliases,
        serves=serves,
        settings=model.launch,
        defaults=engine.defaults if engine is not None else adapters[model.engine].settings_type(),
        metadata=metadata,
        broken=located.broken if isinstance(located, FoundModel) else located,
        build=model.build,
        keep_alive=model.keep_alive,
        pinned=model.pinned,
        preload=model.preload,
        allow_paging=model.allow_paging,
        presets=model.presets,
        unlisted=model.unlisted,
    )


def _locate(config: Config, name: str, model: ModelConfig, found: Iterable[FoundModel]) -> FoundModel | str:
    """The found model that a configured one means, or why there is none."""
    if model.files:
        parted = (one for one in found if one.named and (one.engine, one.id) == (model.engine, name))
        return next(parted, f"the parts of {name} were not looked for")
    if model.file is None:
        wanted = (model.engine, name)
        by_id = next((candidate for candidate in found if (candidate.engine, candidate.id) == wanted), None)
        return by_id or f"{name} names no `file`, and no model of this name was found in {_listing(config.model_dirs)}."
    by_path = {(candidate.engine, candidate.path): candidate for candidate in found}
    places = _places(config, model.file)
    for place in places:
        if (candidate := by_path.get((model.engine, place))) is not None:
            return candidate
    looked = _listing(places) if places else "no folder, since model_dirs is empty"
    return f"the file of {name} was not found; looked at {looked}. Fetch it, or correct `file`."


def _places(config: Config, file: Path) -> tuple[Path, ...]:
    return (file,) if file.is_absolute() else tuple(folder / file for folder in config.model_dirs)


def _listing(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths)) or "model_dirs, which is empty"


def _share_aliases(models: Mapping[str, ModelConfig]) -> tuple[dict[str, tuple[str, ...]], list[ModelNameTaken]]:
    """The aliases that each model gets, and those that it goes without."""
    owners = {name: name for name in models}
    clashes = []
    shared: dict[str, list[str]] = {name: [] for name in models}
    for name, model in models.items():
        for alias in dict.fromkeys(model.aliases):
            owner = owners.setdefault(alias, name)
            if owner != name:
                what = "its id" if alias in models else "an alias of it already"
                clashes.append(ModelNameTaken(alias, owner, name, f"{alias} is {what}: give {name} another alias"))
            elif alias != name:
                shared[name].append(alias)
    return {name: tuple(own) for name, own in shared.items()}, clashes


def _announcement(entry: ModelEntry) -> Event:
    if entry.broken is not None or entry.metadata is None:
        path = str(entry.files[0]) if entry.files else None
        return ModelBroken(entry.id, path, entry.broken or "its files were not read")
    serves = tuple(sorted(entry.serves))
    return ModelFound(entry.id, len(entry.files), entry.metadata.file_bytes, serves)
