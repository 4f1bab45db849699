"""Rules that span several keys of a config. Pure; each yields its problems."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

from engines.contract import LaunchSettings
from supervisor.config.problems import Found, Where
from supervisor.config.schema import BuildConfig, Config, ModelConfig
from supervisor.config.suggest import nearest


def cross_problems(config: Config, wrong: frozenset[Where] = frozenset()) -> list[Found]:
    """What is wrong between the keys of a config whose values are each right.

    Args:
        config: the config, without the parts that are at ``wrong``.
        wrong: places that have a problem already; a rule that reads one of them is silent about it.
    """
    found = []
    for rule, reads in _RULES:
        if any(place[: len(prefix)] == prefix for place in wrong for prefix in reads):
            continue
        found += [item for item in rule(config) if not any(_touches(item.where, place) for place in wrong)]
    return found


def _touches(one: Where, other: Where) -> bool:
    return one[: len(other)] == other or other[: len(one)] == one


def _exposure(config: Config) -> Iterator[Found]:
    """Whoever reaches the address can use the models, so a public one needs tokens, or a clear yes."""
    address = ipaddress.ip_address(config.listen.host)
    mapped = getattr(address, "ipv4_mapped", None)
    if (mapped or address).is_loopback or config.auth.callers or config.auth.open:
        return
    yield Found(
        ("listen", "host"),
        f"{config.listen.host} can be reached from other machines, and no caller needs a token",
        "add a caller with a token_file under auth.callers, listen on 127.0.0.1, or set auth.open: true on purpose",
    )


def _caller_names(config: Config) -> Iterator[Found]:
    seen: dict[str, int] = {}
    for index, caller in enumerate(config.auth.callers):
        first = seen.setdefault(caller.name, index)
        if first != index:
            yield Found(
                ("auth", "callers", index, "name"), f"is the name of auth.callers[{first}] too", "name one anew"
            )


def _build_names(config: Config) -> Iterator[Found]:
    for kind, engine in config.engines.items():
        seen: dict[str, int] = {}
        for index, build in enumerate(engine.builds):
            name = build if isinstance(build, str) else build.name
            if seen.setdefault(name, index) != index:
                place: Where = ("engines", kind.value, "builds", index)
                yield Found(place, f"{name} is in this list twice", "leave one out, or name it anew")


def _model_files(config: Config) -> Iterator[Found]:
    for name, model in config.models.items():
        if model.file is None and not model.files:
            yield Found(("models", name, "file"), "is missing", "name the model's file, or its parts under files")


def _aliases(config: Config) -> Iterator[Found]:
    owners = dict.fromkeys(config.models, "the name of a model")
    for name, model in config.models.items():
        for index, alias in enumerate(model.aliases):
            if alias in owners:
                place: Where = ("models", name, "aliases", index)
                yield Found(place, f"{alias} is {owners[alias]} already", "choose another alias")
            owners.setdefault(alias, f"an alias of {name}")


def _presets(config: Config) -> Iterator[Found]:
    for name, model in config.models.items():
        for key in model.presets:
            if key != name and key not in model.aliases:
                place: Where = ("models", name, "presets", key)
                yield Found(place, f"{key} is no name of {name}", "name it, or one of its aliases")


def _builds_named(config: Config) -> Iterator[Found]:
    """With ``auto`` in the list the names are only known on the machine; then only a likely slip is a problem."""
    for name, model in config.models.items():
        engine = config.engines[model.engine]
        known = [build.name for build in engine.builds if isinstance(build, BuildConfig)]
        if model.build is None or model.build in known:
            continue
        close = nearest(model.build, known)
        if "auto" in engine.builds and close is None:
            continue
        names = f"known: {', '.join(known) or 'none'}"
        place: Where = ("models", name, "build")
        yield Found(place, f"{model.engine.value} has no build {model.build} in this config, {names}", _meant(close))


def _meant(close: str | None) -> str:
    return f"did you mean {close}?" if close else "write a name of engines' builds, or auto"


def _contexts(config: Config) -> Iterator[Found]:
    for kind, engine in config.engines.items():
        smallest, wanted = _own(engine.defaults, "min_ctx_size"), _own(engine.defaults, "ctx_size")
        if smallest is not None and wanted is not None and smallest > wanted:
            yield _context_problem(("engines", kind.value, "defaults"), smallest, wanted)
    for name, model in config.models.items():
        smallest, wanted = _effective(config, model, "min_ctx_size"), _effective(config, model, "ctx_size")
        own = model.launch.model_fields_set & {"min_ctx_size", "ctx_size"}
        if own and smallest is not None and wanted is not None and smallest > wanted:
            yield _context_problem(("models", name, "launch"), smallest, wanted)


def _context_problem(place: Where, smallest: int, wanted: int) -> Found:
    message = f"{smallest} is more than ctx_size, which is {wanted}"
    return Found((*place, "min_ctx_size"), message, "lower min_ctx_size or raise ctx_size")


def _own(settings: LaunchSettings, key: str) -> int | None:
    value = getattr(settings, key, None)
    return value if isinstance(value, int) else None


def _effective(config: Config, model: ModelConfig, key: str) -> int | None:
    """The model's own setting if it is written, else the engine's default."""
    chosen = model.launch if key in model.launch.model_fields_set else config.engines[model.engine].defaults
    return _own(chosen, key)


_RULES: tuple[tuple[Callable[[Config], Iterator[Found]], tuple[Where, ...]], ...] = (
    (_exposure, (("listen",), ("auth",))),
    (_caller_names, ()),
    (_build_names, ()),
    (_model_files, ()),
    (_aliases, ()),
    (_presets, ()),
    (_builds_named, (("engines",),)),
    (_contexts, (("engines",),)),
)
