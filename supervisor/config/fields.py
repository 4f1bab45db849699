"""Types of single values in a config: durations, sizes, paths, whole numbers, switches.

Validated with a ``FileContext`` (a config file) they ask for the file's forms: a duration or a size is a string with a
unit. Without one (values built by code) numbers are seconds and bytes already, and paths are taken as they are.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from supervisor.config.places import SOCKET_FOLDER_BYTES
from supervisor.units import parse_duration, parse_size

LIVE: JsonDict = {"applies": "live"}
NEXT_LAUNCH: JsonDict = {"applies": "next launch"}
RESTART: JsonDict = {"applies": "restart"}

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ENV_NAME = re.compile(r"[^=\0]+")
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]*,]+)(?::([0-9]{1,5}))?")
_OWN_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True, slots=True)
class FileContext:
    """Where a config file's values are read from.

    Attributes:
        folder: the file's folder; relative paths start here.
        env: the environment; HOME and the XDG variables are read from it.
    """

    folder: Path
    env: Mapping[str, str]


def file_context(info: ValidationInfo) -> FileContext | None:
    """The file that is being read; None when code builds the value."""
    return info.context if isinstance(info.context, FileContext) else None


class Section(BaseModel):
    """Base of every part of a config: frozen; an unknown key is an error; errors never carry the value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_parts(cls, data: Any, info: ValidationInfo) -> Any:
        """A part whose every line is commented out is null in YAML, and means its defaults."""
        if not isinstance(data, dict) or file_context(info) is None:
            return data
        return {key: value for key, value in data.items() if value is not None or not is_part(cls, key)}


def is_part(section: type[BaseModel], key: Any) -> bool:
    """Whether a key holds a section or a list, for which a file may write nothing at all."""
    field = section.model_fields.get(key) if isinstance(key, str) else None
    if field is None:
        return False
    kind = get_origin(field.annotation) or field.annotation
    return isinstance(kind, type) and issubclass(kind, BaseModel | dict | tuple)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _duration(value: object, info: ValidationInfo) -> object:
    if _is_number(value):
        if value == 0 or file_context(info) is None:
            return value
        raise ValueError(f"{value!r} has no unit: write it as a duration, such as {value}s or {value}m")
    if not isinstance(value, str):
        raise ValueError("must be a duration: a number and a unit, such as 500ms, 90s, 10m or 1h30m")  # noqa: TRY004  pydantic reads ValueError
    seconds = parse_duration(value)
    if not math.isfinite(seconds):
        raise ValueError("is longer than can be counted")
    return seconds


def _size(value: object, info: ValidationInfo) -> object:
    if _is_number(value):
        if value == 0 or file_context(info) is None:
            return value
        raise ValueError(f"{value!r} has no unit: write it as a size, such as {value}MiB or {value}GiB")
    if not isinstance(value, str):
        raise ValueError("must be a size: a number and a unit, such as 512MiB, 1.5GiB or 16GB")  # noqa: TRY004  pydantic reads ValueError
    try:
        return parse_size(value)
    except OverflowError:
        raise ValueError("is larger than can be counted") from None


def _whole(value: object) -> object:
    """An int; digits as text too, since ``${env:PORT}`` is text."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number, such as 4")  # noqa: TRY004  pydantic reads ValueError
    return value


def _switch(value: object) -> object:
    if isinstance(value, str) and value.lower() in _SWITCH_WORDS:
        return _SWITCH_WORDS[value.lower()]
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004  pydantic reads ValueError
    return value


def _number(value: object) -> object:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError("must be a number, such as 2 or 1.5") from None
    if not _is_number(value):
        raise ValueError("must be a number, such as 2 or 1.5")
    return value


def _auto_not_null(value: object, info: ValidationInfo) -> object:
    if value is None and file_context(info) is not None:
        raise ValueError("has no value: write auto, a value, or leave the key out")
    return None if value == "auto" else value


def expand_home(text: str, env: Mapping[str, str]) -> Path:
    """``~`` and ``~/x`` under HOME of ``env``; ``~name`` by the user database.

    Raises:
        ValueError: there is no such home.
    """
    home = env.get("HOME")
    if home and (text == "~" or text.startswith("~/")):
        return Path(home) / text[2:]
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("starts with ~, and the home folder is not known: write the whole path") from None


def _home_path(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        if isinstance(value, Path) and file_context(info) is None:
            return value
        raise ValueError("must be a path (quote it if it looks like something else)")
    if not value.strip() or "\0" in value:
        raise ValueError("must be a path, and it is empty or holds a NUL")
    context = file_context(info)
    return Path(value) if context is None else expand_home(value, context.env)


def _from_folder(value: Path, info: ValidationInfo) -> Path:
    context = file_context(info)
    return value if context is None else context.folder / value


def _short_enough(value: Path, info: ValidationInfo) -> Path:
    if file_context(info) is not None and len(os.fsencode(value)) > SOCKET_FOLDER_BYTES:
        raise ValueError(
            f"is {len(os.fsencode(value))} bytes long, and sockets need one of {SOCKET_FOLDER_BYTES} at most: "
            "name a shorter folder, such as /run/enginehouse"
        )
    return value


def _address(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        hint = {"localhost": "127.0.0.1", "*": "0.0.0.0", "": "127.0.0.1"}.get(value)
        if value.startswith("[") and value.endswith("]"):
            hint = value[1:-1]
        raise ValueError(
            f"must be an IP address, not a name: write {hint or '127.0.0.1, or 0.0.0.0 for all'}"
        ) from None
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("must be an IP address or a network, such as 10.0.0.2 or 10.0.0.0/24") from None
    return value


def _host_name(value: str) -> str:
    """As it is compared with a Host header: lower case, without brackets and without a dot at the end."""
    name = value.removeprefix("[").removesuffix("]").removesuffix(".").lower()
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if _HOST_NAME.fullmatch(name):
            return name
    raise ValueError("must be a host's name or address alone, such as ai.example.org: no scheme, no port, no path")


def _origin(value: str) -> str:
    """As browsers send it: lower case, without the scheme's own port."""
    found = _ORIGIN.fullmatch(value.lower())
    if found is None:
        raise ValueError(
            "must be the origin of a page, such as https://chat.example.org or http://localhost:3000: "
            "scheme, host and port, and nothing after them"
        )
    scheme, host, port = found.groups()
    own_port = _OWN_PORTS.get(scheme) == port
    return f"{scheme}://{host}" if port is None or own_port else f"{scheme}://{host}:{port}"


def _left_out(value: object, info: ValidationInfo) -> object:
    if value is None and file_context(info) is not None:
        raise ValueError("has no value: write one, or leave the key out")
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in text:
            raise ValueError("a variable's name may not be empty or hold '=', nor name or value a NUL")
    return value


# How a file writes them, for editors and the generated page; ``form`` is the word for it.
_DURATION_TEXT = r"(\d+(\.\d+)?(ms|s|m|h|d))+"
_SIZE_TEXT = r"\d+(\.\d+)?\s*([KMGTkmgt][Ii]?)?[Bb]"
_ZERO = {"enum": [0]}


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": rf"^\s*({pattern})\s*$"}


_DURATION_FORM = {"anyOf": [_text(f"0|{_DURATION_TEXT}"), _ZERO], "form": "duration"}
_INTERVAL_FORM = {**_text(_DURATION_TEXT), "form": "duration"}
_SIZE_FORM = {"anyOf": [_text(f"0|{_SIZE_TEXT}"), _ZERO], "form": "size"}

Duration = Annotated[
    float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_duration), WithJsonSchema(_DURATION_FORM)
]
"""Seconds, at least 0."""
Interval = Annotated[
    float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_duration), WithJsonSchema(_INTERVAL_FORM)
]
"""Seconds, more than 0."""
Size = Annotated[int, Field(ge=0), BeforeValidator(_size), WithJsonSchema(_SIZE_FORM)]
"""Bytes."""
SomeSize = Annotated[int, Field(gt=0), BeforeValidator(_size), WithJsonSchema({**_text(_SIZE_TEXT), "form": "size"})]
"""Bytes, at least one."""
AutoSize = Annotated[Size | None, BeforeValidator(_auto_not_null)]
"""Bytes; None: auto."""
Whole = Annotated[int, BeforeValidator(_whole)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_number)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
"""Words that stand in addresses and headers: no blanks, no control characters."""
HomePath = Annotated[Path, BeforeValidator(_home_path)]
"""``~`` is expanded; a relative path stays relative (to something that is not the config's folder)."""
ConfigPath = Annotated[Path, AfterValidator(_from_folder), BeforeValidator(_home_path)]
"""``~`` is expanded; a relative path starts in the config file's folder."""
SocketFolder = Annotated[ConfigPath, AfterValidator(_short_enough)]
"""A ``ConfigPath`` in which Unix sockets can be made."""
Address = Annotated[str, AfterValidator(_address)]
Network = Annotated[str, AfterValidator(_network)]
HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]


Auto = BeforeValidator(_auto_not_null)
"""``auto`` becomes None, for ``X | None``."""

LeftOut = BeforeValidator(_left_out)
"""For ``X | None`` that a file either sets or leaves out: a key without a value may be a slip."""
