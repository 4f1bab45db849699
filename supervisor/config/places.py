"""Folders and config files by convention: the XDG variables, else the usual places."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

_NAME = "enginehouse"
# A socket's path holds 107 bytes on Linux; this leaves room for `/` and a file name of 16 bytes.
SOCKET_FOLDER_BYTES = 90


def home(env: Mapping[str, str]) -> Path:
    """The owner's home folder; the root folder where there is none, as in bare containers."""
    if env.get("HOME"):
        return Path(env["HOME"])
    try:
        return Path("~").expanduser()
    except RuntimeError:
        return Path("/")


def _xdg(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    """The variable's folder; one that is not absolute is ignored, as the XDG specification asks."""
    value = env.get(variable, "")
    return Path(value) if value.startswith("/") else home(env) / fallback


def default_state_dir(env: Mapping[str, str]) -> str:
    """``$XDG_STATE_HOME/enginehouse``, else ``~/.local/state/enginehouse``."""
    return str(_xdg(env, "XDG_STATE_HOME", ".local/state") / _NAME)


def default_data_dir(env: Mapping[str, str]) -> str:
    """``$XDG_DATA_HOME/enginehouse``, else ``~/.local/share/enginehouse``."""
    return str(_xdg(env, "XDG_DATA_HOME", ".local/share") / _NAME)


def default_runtime_dir(env: Mapping[str, str]) -> str:
    """``$XDG_RUNTIME_DIR/enginehouse``, else ``enginehouse-UID`` in the temp folder, else in ``/tmp``.

    Whoever makes the folder makes it 0700. The first that is short enough for a Unix socket is taken.
    """
    own = f"{_NAME}-{os.getuid()}"
    runtime = env.get("XDG_RUNTIME_DIR", "")
    places = [f"{runtime.rstrip('/')}/{_NAME}"] if runtime.startswith("/") else []
    temporary = env.get("TMPDIR", "")
    places.append(f"{temporary if temporary.startswith('/') else tempfile.gettempdir()}/{own}")
    short = [place for place in places if len(os.fsencode(place)) <= SOCKET_FOLDER_BYTES]
    return short[0] if short else f"/tmp/{own}"  # noqa: S108  the folder is made 0700, or refused


def config_places(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where a config is looked for when none is named, in order."""
    return (_xdg(env, "XDG_CONFIG_HOME", ".config") / _NAME / "config.yaml", Path("/etc") / _NAME / "config.yaml")
