"""A reverse proxy that puts the daemon below a path, as an owner's nginx does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.daemon import Daemon

PREFIX = "/house"
_PIECE = 65536


@contextmanager
def below_a_path(daemon: Daemon) -> Iterator[str]:
    """The address of the daemon below ``PREFIX``; each request has a connection of its own."""
    address = urlsplit(daemon.base_url)
    ready = threading.Event()
    made: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, _, rest = head.partition(b"\r\n")
            there, back = await asyncio.open_connection(address.hostname, address.port)
            back.write(line.replace(f" {PREFIX}/".encode(), b" /", 1) + b"\r\nConnection: close\r\n")
            back.write(rest.replace(b"Connection: keep-alive\r\n", b""))
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        writer.close()

    async def serve() -> None:
        stop = asyncio.Event()
        server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        made.append((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
        ready.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="proxy")
    thread.start()
    ready.wait()
    loop, stop, port = made[0]
    try:
        yield f"http://127.0.0.1:{port}{PREFIX}/"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(_PIECE):
            target.write(piece)
            await target.drain()
    finally:
        target.close()
