"""``serve --first-token``: where no caller is configured, one is made, so that an open address is never open to all."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from supervisor.config.load import LoadedConfig
from supervisor.config.sections import AuthConfig, CallerConfig
from supervisor.errors import ConfigError

FILE_NAME = "admin-token"
CALLER = "admin"
_BYTES = 32


def with_first_token(loaded: LoadedConfig) -> LoadedConfig:
    """The config with a caller whose token is in the state folder; one that has callers, or says ``open``, as it is.

    The token is made at the first start, and printed then and never again.

    Raises:
        ConfigError: ``state_dir_unusable``: it can't be kept.
    """
    config = loaded.config
    if config.auth.callers or config.auth.open:
        return loaded
    path = config.state_dir.resolve() / FILE_NAME
    token = _make(path)
    if token is not None:
        print(_words(token, path), flush=True)
    caller = CallerConfig(name=CALLER, token_file=path, roles=("use", "admin"))
    return replace(loaded, config=config.model_copy(update={"auth": AuthConfig(callers=(caller,))}))


def _make(path: Path) -> str | None:
    """A new token, written to the file; None: there is one already."""
    token = secrets.token_urlsafe(_BYTES)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Written beside it and linked: a start that is cut off leaves no half token, and of two only one makes it.
        draft = path.with_name(f".{FILE_NAME}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            return None
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(
            "state_dir_unusable",
            f"the first admin token can't be kept in {path}: {error.strerror or error}. Give the state folder to the "
            f"user that runs this ({os.geteuid()}), or configure auth.callers.",
            path=str(path),
        ) from error
    return token


def _words(token: str, path: Path) -> str:
    return (
        f"enginehouse: no caller is configured, so an admin token was made. It is kept in {path}, and said only now:\n"
        f"\n    {token}\n\n"
        f"enginehouse: enter it on the status page, or send it as an API key. For callers of your own: auth.callers."
    )
