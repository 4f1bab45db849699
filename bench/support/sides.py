"""The ways to one engine, side by side: straight, through the daemon, and through what the daemon is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.support.daemon import Daemon, Engine, config, running_daemon
from bench.support.engines import Build, ask, canned_build, real_build, toy_model
from bench.support.http import Load, Target, post
from bench.support.others import Server, bare_proxy, nginx, router
from tests.fakes.tiny_gguf import write_gguf

STRAIGHT = "straight to the engine"
DAEMON = "enginehouse"
ROUTER = "llama-server's router"
NGINX = "nginx"
BARE = "bare aiohttp proxy"

CANNED = "canned"
WIDE = "wide"
TOY = "toy"
REAL = "real"

SLOTS = 64
MOST_STREAMS = 256
_TOY_CTX = 512
_REAL_CTX = 1024
_REAL_SLOTS = 2
_WARM_UP = {CANNED: 40, WIDE: 40, TOY: 40, REAL: 4}


@dataclass(slots=True)
class Ways:
    """The targets to one model's engine, by the way there; the first one is the baseline.

    Attributes:
        pids: of the process in between.
        missing: why a way is not here.
    """

    model: str
    targets: dict[str, Target] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def warm_up(self) -> None:
        """Some requests on each way, so that no first time is measured."""
        for target in self.targets.values():
            with Load(target) as load:
                load.run(requests=_WARM_UP[self.model])


@dataclass(slots=True)
class House:
    """A daemon with the canned engine (``wide``: 256 slots), toy weights on the real engine, perhaps a real model."""

    daemon: Daemon
    folder: Path
    build: Build | None
    nginx: Path | None
    real_file: Path | None
    stack: ExitStack
    _engines: dict[str, Engine] = field(default_factory=dict)
    _servers: dict[tuple[str, str], Server] = field(default_factory=dict)

    def ways(self, model: str, *, stream: bool = False) -> Ways:
        """Every way to a model's engine; what is not running yet is started."""
        engine = self._engines.get(model) or self._engines.setdefault(model, self.daemon.load(model))
        body = ask(model, stream=stream, temperature=0 if model == REAL else 1)
        ways = Ways(model)
        ways.targets[STRAIGHT] = post(engine.address, body, headers=engine.headers, closes=stream)
        self._add(ways, BARE, self._server(BARE, model, lambda: self._open(bare_proxy(engine))), body)
        if self.nginx is None:
            ways.missing.append("nginx: not installed here, row left out")
        else:
            executable = self.nginx
            way = f"{NGINX} {'streamed' if stream else 'whole'}"
            start = partial(nginx, executable, self.folder, engine, keeps=not stream)
            server = self._server(way, model, lambda: self._open(start()))
            self._add(ways, NGINX, server, body)
        if model in {CANNED, WIDE}:
            ways.missing.append("llama-server's router: starts only itself, so it is measured on the real engine")
        else:
            self._add(ways, ROUTER, self._server(ROUTER, model, lambda: self._open(self._router(model))), body)
        ways.targets[DAEMON] = post(self.daemon.address, body)
        ways.pids[DAEMON] = self.daemon.pid
        ways.warm_up()
        return ways

    def _server(self, way: str, model: str, start: Any) -> Server:
        known = self._servers.get((way, model))
        if known is None:
            known = self._servers[way, model] = start()
        return known

    def _open(self, manager: Any) -> Server:
        server: Server = self.stack.enter_context(manager)
        return server

    def _router(self, model: str) -> Any:
        assert self.build is not None
        return router(self.build, self._router_folder(model), router_arguments(self._engines[model].argv))

    def _router_folder(self, model: str) -> Path:
        folder = self.folder / f"router-{model}"
        folder.mkdir()
        file = self.real_file if model == REAL else self.folder / f"{TOY}.gguf"
        assert file is not None
        (folder / f"{model}.gguf").symlink_to(file)
        return folder

    @staticmethod
    def _add(ways: Ways, name: str, server: Server, body: Mapping[str, Any]) -> None:
        ways.targets[name] = post(server.address, body)
        ways.pids[name] = server.pid


def router_arguments(argv: tuple[str, ...]) -> list[str]:
    """The daemon's own arguments for the engine, less those that name the model and the address."""
    own = {"--model", "--alias", "--host", "--port"}
    kept: list[str] = []
    words = iter(argv[1:])
    for word in words:
        if word in own:
            next(words)
        else:
            kept.append(word)
    return kept


@contextmanager
def open_house(
    folder: Path,
    *,
    engine: Path | None = None,
    with_engine: bool = True,
    model_file: Path | None = None,
    nginx_path: Path | None = None,
    profile: Path | None = None,
) -> Iterator[House]:
    """A running daemon over a canned and, unless told otherwise, a real llama-server.

    Args:
        folder: for everything that is written.
        with_engine: False: the canned engine only.
        engine: the llama-server; None: the packaged one.
        model_file: a real model, served as ``real``.
        nginx_path: nginx, if it takes part.
        profile: see ``running_daemon``.

    Raises:
        BenchError: there is no llama-server, or the daemon does not start.
    """
    builds = [canned_build(folder)]
    models: dict[str, Any] = {
        name: {
            "file": str(write_gguf(folder / f"{name}.gguf")),
            "build": "canned",
            "launch": {"slots": slots, "ctx_size": 64},
        }
        for name, slots in ((CANNED, SLOTS), (WIDE, MOST_STREAMS))
    }
    build = real_build(engine) if with_engine else None
    if build is not None:
        builds.append(build)
        launch = {"slots": SLOTS, "ctx_size": _TOY_CTX, "threads": 1, "threads_batch": 1, "cache_ram": 0}
        models[TOY] = {"file": str(toy_model(folder, TOY)), "build": build.name, "launch": launch}
    if model_file is not None and build is not None:
        launch = {"slots": _REAL_SLOTS, "ctx_size": _REAL_CTX}
        models[REAL] = {"file": str(model_file), "build": build.name, "launch": launch}
    document = config(models, *(found.as_config() for found in builds))
    with running_daemon(folder, document, profile=profile) as daemon, ExitStack() as stack:
        daemon.wait_until_known()
        yield House(daemon, folder, build, nginx_path, model_file, stack)
