from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import orjson

from supervisor.processes.log_lines import log_path
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream


def written(folder: Path, model: str, *lines: str) -> None:
    """A log as it lies there, begun by somebody else."""
    path = log_path(folder, model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


async def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    """Of a model whose name holds a slash too; so many as were asked for."""
    written(tmp_path, "org/m", *(f"line {number}" for number in range(9)))
    async with running_gateway(PlayedEngine(stream(b"")), logs=tmp_path) as gateway:
        async with gateway.client.get("/admin/v1/models/org/m/logs?lines=2") as answer:
            assert [row["line"][-6:] for row in (await answer.json())["lines"]] == ["line 7", "line 8"]
        async with gateway.client.get("/admin/v1/models/nobody/logs") as answer:
            assert answer.status == 404


async def test_a_log_that_is_followed_goes_on(tmp_path: Path) -> None:
    """What is written later comes later; a model that was never started may be followed too."""
    async with (
        running_gateway(PlayedEngine(stream(b"")), logs=tmp_path) as gateway,
        gateway.client.get("/admin/v1/models/m/logs?follow=1") as answer,
    ):
        with anyio.fail_after(10):
            assert await _next(answer) == []
            await anyio.to_thread.run_sync(written, tmp_path, "m", "hello")
            assert [row["line"][-5:] for row in await _next(answer)] == ["hello"]


async def _next(answer: Any) -> Any:
    """The lines of the next event."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            return orjson.loads(line[6:])
    raise AssertionError("the stream ended")
