"""The program: parse, listen, load, serve, drain, end.

Exit codes: 0, or one of those below with a line that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.mlx.server.options import Options, options_of, parser, read_options

USAGE = 2
LOAD_FAILED = 10
BROKEN = 11
ADDRESS_FAILED = 12
# Packages and the modules that they bring.
_NEEDED = {"mlx": "mlx", "mlx-lm": "mlx_lm", "aiohttp": "aiohttp", "orjson": "orjson", "llguidance": "llguidance"}
# What was computed is saved for so long at the end; less than the supervisor waits before it kills.
_SAVE_SECONDS = 3.0
# Answers that say why must be read before the process is gone.
_LAST_WORDS = 1.0
_log = logging.getLogger("mlx-server")


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM, SIGINT, or a failure; the exit code."""
    parsed = read_options(argv)
    if parsed.version or parsed.list_options or parsed.list_devices:
        return _tell(parsed)
    if parsed.model is None:
        print("mlx-server: error: --model is missing", file=sys.stderr)
        return USAGE
    logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(message)s", stream=sys.stderr)
    options = options_of(parsed)
    os.umask(0o077)
    try:
        return asyncio.run(_serve(options))
    except KeyboardInterrupt:
        return 0


def _tell(parsed: argparse.Namespace) -> int:
    """What was asked for, on stdout; ends with 1 where the server can't run, and says how it could."""
    from engines.mlx.server.loading import versions  # noqa: PLC0415  only where it is asked for

    lacking = [name for name in _NEEDED if importlib.util.find_spec(_NEEDED[name]) is None]
    if lacking:
        print(
            f"ModuleNotFoundError: {sys.executable} has no {', '.join(lacking)}. Install what is missing: "
            f"{sys.executable} -m pip install 'enginehouse[mlx]' (or: {' '.join(_NEEDED)})",
            file=sys.stderr,
        )
        return 1
    if parsed.list_options:
        print(parser().format_help())
        return 0
    found: dict[str, Any] = dict(versions())
    if parsed.list_devices:
        import mlx.core as mx  # noqa: PLC0415  half a second

        metal = bool(mx.metal.is_available())
        about = mx.device_info() if metal else {}
        found = {
            "metal": metal,
            "name": str(about.get("device_name", "CPU")),
            "total_bytes": about.get("memory_size"),
            "working_set_bytes": about.get("max_recommended_working_set_size"),
        }
    print(json.dumps(found))
    return 0


async def _serve(options: Options) -> int:
    from aiohttp import web  # noqa: PLC0415  after the line was read

    from engines.mlx.server.service import Service  # noqa: PLC0415
    from engines.mlx.server.site import make_site  # noqa: PLC0415

    def make(emit: Any) -> Any:
        from engines.mlx.server.engine import Engine  # noqa: PLC0415  seconds, in the engine's thread

        return Engine(options, emit)

    service = Service(options, make)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, stopping)
    runner = web.AppRunner(make_site(service), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await _listen(web, runner, options)
    except OSError as error:
        _log.error("%s: %s", type(error).__name__, error)
        return ADDRESS_FAILED
    began = time.monotonic()
    service.engine.start()
    code = await _until_end(service, stopping, began)
    service.close()
    await runner.cleanup()
    return code


def _asked_to_stop(stopping: asyncio.Event) -> None:
    if stopping.is_set():  # asked twice: nothing more is waited for
        os._exit(0)
    stopping.set()


async def _listen(web: Any, runner: Any, options: Options) -> None:
    if options.socket is not None:
        _must_be_free(options.socket)
        await web.UnixSite(runner, str(options.socket)).start()
        _log.info("listening on unix://%s", options.socket)
    else:
        await web.TCPSite(runner, options.host, options.port).start()
        _log.info("listening on http://%s:%d", options.host, options.port)


def _must_be_free(path: Path) -> None:
    """A socket file that somebody listens at would be replaced without a word; a stale one may be.

    Raises:
        OSError: somebody listens there.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if path.exists() and probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {path}")


async def _until_end(service: Any, stopping: asyncio.Event, began: float) -> int:
    """Watch the engine until it breaks or an end is asked for; the exit code."""
    stop = asyncio.create_task(stopping.wait())
    told = False
    try:
        while not stopping.is_set():
            changed = asyncio.create_task(service.changed.wait())
            await asyncio.wait({stop, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            service.changed.clear()
            if service.engine.state == "broken":
                _log.error("died: %s", service.engine.reason)
                await asyncio.sleep(_LAST_WORDS)
                return BROKEN if told else LOAD_FAILED
            if service.engine.state == "ready" and not told:
                told = True
                _announce(service, time.monotonic() - began)
    finally:
        stop.cancel()
    return await _drain(service)


def _announce(service: Any, seconds: float) -> None:
    """What was loaded, in the lines that the adapter reads."""
    facts = service.engine.engine.loaded.facts
    _log.info("memory: weights %d bytes on %s", facts.parameters, facts.details.get("place", "host"))
    _log.info("versions: %s", ", ".join(f"{name} {version}" for name, version in facts.versions.items()))
    _log.info("model loaded in %.2f s: context %d, %d at once", seconds, facts.context, service.options.parallel)


async def _drain(service: Any) -> int:
    """Finish what runs, within bounds, and take nothing new."""
    service.draining = True
    deadline = time.monotonic() + service.options.drain
    while not service.idle and time.monotonic() < deadline:  # noqa: ASYNC110  bounded, and once in a life
        await asyncio.sleep(0.02)
    if service.engine.state == "loading":
        # A load can't be interrupted: leave it where it is.
        os._exit(0)
    if service.engine.state == "ready":
        with contextlib.suppress(Exception):  # what can't be saved is computed again
            saved = await service.engine.call(lambda engine: engine.flush(_SAVE_SECONDS))
            _log.info("cache: %d prompts saved", saved)
    service.engine.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(service.engine.ended(), 5.0)
    return 0
