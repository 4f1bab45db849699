"""``serve``: read the config, set up logs, run the daemon. Nothing here is imported that listening doesn't need."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.config.load import LoadedConfig, find_config, load_config, override_listen
from supervisor.gateway.address import OpenAddress, open_address
from supervisor.telemetry.logging import LogSettings, configure_logging, json_lines
from supervisor.telemetry.redaction import Redactor

if TYPE_CHECKING:
    from supervisor.app import OnListening


def serve(config: Path | None, host: str | None, port: int | None, *, first_token: bool = False) -> int:
    """Run the daemon until it is told to stop, and give its exit code.

    With ``first_token`` a config without callers gets one, see ``supervisor.cli.first_token``.

    Raises:
        SupervisorError: the config, the address or the state folder can't be used.
    """
    path = find_config(config, os.environ)

    def read() -> LoadedConfig:
        loaded = load_config(path, os.environ)
        if first_token:
            from supervisor.cli.first_token import with_first_token  # noqa: PLC0415  seldom asked for

            loaded = with_first_token(loaded)
        return listen_at(loaded, host, port)

    return run_loaded(read(), os.environ, read=read)


def load(explicit: Path | None, env: Mapping[str, str]) -> LoadedConfig:
    """The config that a command works with: the named one, else the first found, else none.

    Raises:
        ConfigError: ``config_not_found`` or ``config_invalid``.
    """
    return load_config(find_config(explicit, env), env)


def listen_at(loaded: LoadedConfig, host: str | None, port: int | None) -> LoadedConfig:
    """The same config with the command line's address; None leaves host or port as it is.

    Raises:
        ConfigError: ``config_invalid``: not an address, or an open one without tokens.
    """
    if host is None and port is None:
        return loaded
    return replace(loaded, config=override_listen(loaded.config, host, port))


def run_loaded(
    loaded: LoadedConfig,
    env: Mapping[str, str],
    on_listening: OnListening | None = None,
    read: Callable[[], LoadedConfig] | None = None,
) -> int:
    """Run the daemon on a config, on uvloop where it installs.

    ``env`` decides the form of the logs; ``on_listening`` is called once with the status document, when models and
    builds are known.

    Raises:
        SupervisorError: the daemon could not start.
    """
    redactor = Redactor()
    settings = LogSettings.from_environment(env, on_terminal=sys.stderr.isatty())
    logger = configure_logging(settings, redactor)
    logs = {"logger": logger, "redactor": redactor, "lines": json_lines(settings, redactor)}
    address = open_address(loaded.config)
    try:
        return _run_daemon(loaded, address, read, **logs, env=env, on_listening=on_listening)
    finally:
        address.close()


def _run_daemon(
    loaded: LoadedConfig, address: OpenAddress, read: Callable[[], LoadedConfig] | None, **options: Any
) -> int:
    import anyio  # noqa: PLC0415  after the config: a wrong one is said at once

    _import_aiohttp()
    from supervisor.app import DaemonOptions, run_daemon  # noqa: PLC0415  the rest of the daemon, after listening

    chosen = DaemonOptions(address=address, read=read, **options)

    async def run() -> int:
        gc.enable()  # off since the command line began, see ``supervisor.cli.main.run``
        return await run_daemon(loaded, options=chosen)

    return anyio.run(run, backend_options={"use_uvloop": _has_uvloop()})


def _import_aiohttp() -> None:
    """Import it without the machine's certificates: it reads them all at import (0.1 s), for TLS to servers.

    Engines are asked over Unix sockets and loopback; whoever asks a server by TLS makes a context of its own.
    """
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(before, os.devnull))
    try:
        import aiohttp  # noqa: F401, PLC0415  see above
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401, PLC0415  asked only whether it is there
    except ImportError:
        return False
    return True
