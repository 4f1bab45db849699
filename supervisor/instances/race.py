"""Waiting for the first of several things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def first_of(**waits: Callable[[], Awaitable[object]]) -> str:
    """Run all, cancel the rest when one ends, and tell its name.

    An exception of the first to end is raised as it is, not in a group.
    """
    winner: list[tuple[str, Exception | None]] = []

    async def run(name: str, wait: Callable[[], Awaitable[object]]) -> None:
        failure: Exception | None = None
        try:
            await wait()
        except Exception as error:  # noqa: BLE001  raised again below
            failure = error
        winner.append((name, failure))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for name, wait in waits.items():
            tasks.start_soon(run, name, wait)
    name, failure = winner[0]
    if failure is not None:
        raise failure
    return name
