"""Finds, reads and validates a config; every problem is reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from supervisor.config.checks import cross_problems
from supervisor.config.fields import FileContext, expand_home
from supervisor.config.places import config_places
from supervisor.config.problems import Found, Problem, Where, config_error, to_problems
from supervisor.config.schema import Config, ListenConfig
from supervisor.config.translate import found_in
from supervisor.config.yaml import Document, read_yaml
from supervisor.errors import ConfigError

__all__ = ["LoadedConfig", "Problem", "find_config", "load_config", "override_listen", "parse_config"]

_MAX_BYTES = 4 * 2**20
_ROUNDS = 4
_FIRST_LINE = "the first line of a config is: version: 1"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid config.

    Attributes:
        path: the file that it came from; None: there was no file.
        from_env: places whose values came from the environment, so may be secrets.
    """

    config: Config
    path: Path | None
    from_env: frozenset[Where] = frozenset()


def find_config(explicit: Path | None, env: Mapping[str, str]) -> Path | None:
    """The config file: the named one, ``$ENGINEHOUSE_CONFIG``, the user's, the machine's, or None.

    Raises:
        ConfigError: ``config_not_found``: a file was named and isn't there.
    """
    variable = env.get("ENGINEHOUSE_CONFIG")
    if explicit is None and not variable:
        return next((place for place in config_places(env) if _is_there(place)), None)
    try:
        path = explicit if explicit is not None else expand_home(str(variable), env)
    except ValueError:
        path = Path(str(variable))
    if not _is_there(path):
        named = "" if explicit is not None else " (named by ENGINEHOUSE_CONFIG)"
        raise ConfigError(
            "config_not_found",
            f"there is no config file {path}{named}. Correct the path, or name none to run without a config.",
            path=str(path),
        )
    return path


def load_config(path: Path | None, env: Mapping[str, str]) -> LoadedConfig:
    """The config in a file; with None, the one of a machine without a file.

    Raises:
        ConfigError: ``config_not_found``, or ``config_invalid`` with ``problems``, a list of ``Problem``.
    """
    if path is None:
        config, problems = _validate(Document(tree={"version": 1}), FileContext(Path.cwd(), env))
        if config is None:
            raise config_error(to_problems(problems, {}, {}), None)
        return LoadedConfig(config, None)
    config, document = _parse(_read(path), path, env)
    return LoadedConfig(config, path, frozenset(document.secrets))


def parse_config(data: bytes, path: Path, env: Mapping[str, str]) -> Config:
    """The config in ``data``, as if it were the content of the file ``path``.

    Raises:
        ConfigError: ``config_invalid`` with ``problems``.
    """
    return _parse(data, path, env)[0]


def _parse(data: bytes, path: Path, env: Mapping[str, str]) -> tuple[Config, Document]:
    document = read_yaml(data, env)
    found = _shape_problems(document)
    config = None
    if not found:
        config, found = _validate(document, FileContext(path.absolute().parent, env))
    if config is None:
        raise config_error(to_problems(found, document.lines, document.secrets), path)
    return config, document


def override_listen(config: Config, host: str | None, port: int | None) -> Config:
    """The config with the address of the command line.

    Raises:
        ConfigError: ``config_invalid``: not an address, or one that other machines reach and that has no tokens.
    """
    changes = {"host": host, "port": port}
    wanted = {**config.listen.model_dump(), **{key: value for key, value in changes.items() if value is not None}}
    found: list[Found] = []
    try:
        config = config.model_copy(update={"listen": ListenConfig.model_validate(wanted)})
    except ValidationError as error:
        found = [Found(("listen", *item.where), item.message, item.suggestion) for item in found_in(error, {})]
    found = found or cross_problems(config)
    if found:
        raise config_error(to_problems(found, {}, {}), None)
    return config


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        message = f"there is no config file {path}. Correct the path, or name none to run without a config."
        raise ConfigError("config_not_found", message, path=str(path)) from error
    except IsADirectoryError as error:
        problem = Problem("", "is a folder", "name the file in it, such as config.yaml")
        raise config_error([problem], path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise config_error([Problem("", f"can't be read: {reason}")], path) from error
    if len(data) > _MAX_BYTES:
        raise config_error([Problem("", f"is larger than {_MAX_BYTES >> 20} MiB: is this a config?")], path)
    return data


def _shape_problems(document: Document) -> list[Found]:
    """Problems that leave nothing to validate."""
    if isinstance(document.tree, dict):
        return []
    if document.problems:
        return list(document.problems)
    if document.tree is None:
        return [Found((), "is empty", _FIRST_LINE)]
    kind = "a list" if isinstance(document.tree, list) else "a single value"
    return [Found((), f"must be a section of keys (name: value), and this is {kind}", _FIRST_LINE)]


def _validate(document: Document, context: FileContext) -> tuple[Config | None, list[Found]]:
    """The config, or all problems: of YAML, of each value, and between values."""
    found = list(document.problems)
    tree: dict[str, Any] = document.tree
    if "version" not in tree:
        found.append(Found(("version",), "is missing", _FIRST_LINE))
        tree = {"version": 1, **tree}
    wrong = {item.where for item in found if item.blocks}
    for _ in range(_ROUNDS):
        try:
            config = Config.model_validate(tree, context=context)
        except ValidationError as error:
            fresh = [item for item in found_in(error, tree) if not _within(item.where, wrong)]
            found += fresh
            wrong |= {item.where for item in fresh}
            tree = _without(tree, {_part_of(place, tree) for place in wrong})
            continue
        found += cross_problems(config, frozenset(wrong))
        return (None, found) if found else (config, [])
    return None, found


def _within(where: Where, wrong: set[Where]) -> bool:
    return any(where[:end] in wrong for end in range(len(where) + 1))


def _part_of(where: Where, tree: Any) -> Where:
    """The part to leave out, so that the rules between values can be asked of the rest.

    The whole list, if the problem is in one; what lacks a key, if that is the problem.
    """
    at = tree
    for depth, step in enumerate(where):
        if isinstance(step, int):
            return where[:depth]
        if not isinstance(at, dict) or step not in at:
            return where[: max(depth, 1)]
        at = at[step]
    return where


def _without(tree: Any, parts: set[Where], at: Where = ()) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _without(value, parts, (*at, key)) for key, value in tree.items() if (*at, key) not in parts}
