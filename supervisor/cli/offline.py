"""What is known without a running daemon: from the config and the state folder, under its lock."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread

from supervisor.app import Knowledge
from supervisor.app.conversations import conversation_keeper
from supervisor.cli.probe import ProbedDevice, devices_of
from supervisor.cli.serve import load
from supervisor.clock import SystemClock
from supervisor.config.schema import Config
from supervisor.events import EventBus
from supervisor.gateway.build_control import BuildControl
from supervisor.gateway.status_document import model_row, plan_document
from supervisor.sessions.keeper import Keeper
from supervisor.storage import StateLock

Rows = list[dict[str, Any]]
BuildChange = Literal["clear", "pin", "unpin"]
T = TypeVar("T")


def model_rows(config: Path | None) -> Callable[[], Rows]:
    """Rows of ``models list``, broken models among them with the reason."""

    async def read(knowledge: Knowledge) -> Rows:
        await knowledge.look_for_models()
        catalog = knowledge.router.catalog
        return [model_row(entry) for entry in (catalog.entries if catalog else ())]

    return lambda: _locked(load(config, os.environ).config, read)


def build_rows(config: Path | None) -> Callable[[], Rows]:
    """Rows of ``builds list``."""

    async def read(knowledge: Knowledge) -> Rows:
        await knowledge.book.load()
        await knowledge.shelf.look_at_all()
        return BuildControl(knowledge.shelf, knowledge.book, SystemClock()).rows()

    return lambda: _locked(load(config, os.environ).config, read)


def change_build(config: Path | None, name: str, change: BuildChange) -> Callable[[], dict[str, Any]]:
    """Clear or pin a build in the state folder, under its lock; gives the build's row as it is then."""

    async def act(knowledge: Knowledge) -> Rows:
        await knowledge.book.load()
        await knowledge.shelf.look_at_all()
        control = BuildControl(knowledge.shelf, knowledge.book, SystemClock())
        row = control.clear(name) if change == "clear" else control.pin(name, on=change == "pin")
        await knowledge.book.save()
        return [row]

    return lambda: _locked(load(config, os.environ).config, act)[0]


def kept_rows(config: Path | None) -> Callable[[], dict[str, Any]]:
    """The answer of ``GET /admin/v1/cache``, from the folder."""

    async def read(keeper: Keeper) -> Rows:
        return keeper.rows()

    return lambda: {"files": _with_keeper(config, read)}


def clear_kept(config: Path | None, model: str | None) -> Callable[[], dict[str, Any]]:
    """The answer of ``POST /admin/v1/cache/clear``, from the folder, which no daemon uses meanwhile."""

    async def act(keeper: Keeper) -> Rows:
        files, size = await keeper.clear(model)
        return [{"files": files, "bytes": size}]

    return lambda: _with_keeper(config, act)[0]


def _with_keeper(path: Path | None, act: Callable[[Keeper], Awaitable[Rows]]) -> Rows:
    config = load(path, os.environ).config

    async def inside(_: Knowledge) -> Rows:
        keeper = conversation_keeper(lambda: config, SystemClock(), EventBus(SystemClock()))
        await keeper.store.load()
        return await act(keeper)

    return _locked(config, inside)


def ask_devices(config: Config, env: Mapping[str, str]) -> tuple[ProbedDevice, ...]:
    """Rows of every build that can be asked, in the config's order; locks and writes nothing."""

    async def read(knowledge: Knowledge) -> tuple[ProbedDevice, ...]:
        await knowledge.shelf.look_at_all()
        cards = (await anyio.to_thread.run_sync(knowledge.read_host)).cards.cards
        builds = (build for build in knowledge.shelf.builds() if build.problem is None)
        return tuple(row for build in builds for row in devices_of(build.name, build.facts.devices, cards))

    return _run(config, env, None, _ROOT, read)


def plan_of(config: Config, env: Mapping[str, str], model: str, root: Path) -> dict[str, Any]:
    """The plan document of a model on the machine below ``root``; locks and writes nothing.

    Raises:
        SupervisorError: the model is unknown or broken, or there is no build.
    """

    async def read(knowledge: Knowledge) -> dict[str, Any]:
        await knowledge.look_for_models()
        return plan_document(await knowledge.launching.plan(knowledge.router.find(model)))

    return _run(config, env, None, root, read)


_ROOT = Path("/")


def _locked(config: Config, read: Callable[[Knowledge], Awaitable[Rows]]) -> Rows:
    lock = StateLock.take(config.state_dir)
    try:
        return _run(config, os.environ, config.state_dir, _ROOT, read)
    finally:
        lock.release()


def _run(
    config: Config, env: Mapping[str, str], state: Path | None, root: Path, read: Callable[[Knowledge], Awaitable[T]]
) -> T:
    async def run() -> T:
        return await read(Knowledge(config, env, EventBus(SystemClock()), state, root=root))

    return anyio.run(run)
