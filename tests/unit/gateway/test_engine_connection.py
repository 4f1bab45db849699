from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from engines.contract import Endpoint
from supervisor.gateway.engine_connection import (
    CutError,
    EngineConnection,
    NotReachedError,
    SilentError,
    StaleError,
    ask,
    post_bytes,
)
from supervisor.instances.kept_connections import KeptConnections
from tests.fakes.gateway import PATIENCE_SECONDS
from tests.support.sockets import short_socket_folder

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Engine = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _asked(
    engine: Engine, *, patience: float = PATIENCE_SECONDS, body: bytes = b"{}", tcp: bool = False
) -> AsyncIterator[EngineConnection]:
    """A connection to a server that does what ``engine`` does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await engine(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set()

    ended = anyio.Event()
    with short_socket_folder() as folder:
        endpoint = Endpoint(folder / "e.sock")
        if tcp:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            endpoint = Endpoint(port=server.sockets[0].getsockname()[1])
        else:
            server = await asyncio.start_unix_server(serve, folder / "e.sock")
        async with server:
            with anyio.fail_after(PATIENCE_SECONDS * 3):
                connection = await ask(endpoint, post_bytes("/v1/x", {"Authorization": "Bearer k"}, body), patience)
                try:
                    yield connection
                finally:
                    connection.close()
                    await ended.wait()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def _says(answer: bytes) -> Engine:
    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(answer)
        await writer.drain()

    return engine


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("size", [2, 3 * 2**20])
async def test_a_request_arrives_whole(size: int, tcp: bool) -> None:
    """Small or large, over a Unix socket or a port; with the engine's key, and without a promise to stay."""
    heard: list[bytes] = []
    body = b"x" * size

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await _request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with _asked(engine, body=body, tcp=tcp) as connection:
        assert await connection.status() == 200
        assert await connection.read_all() == b"ok"
        assert await connection.read() == b""
    head, _, rest = heard[0].partition(b"\r\n\r\n")
    assert rest == body
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: engine\r\n")
    assert {b"Authorization: Bearer k", b"Connection: close"} <= set(head.split(b"\r\n"))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-x\r\n\r\n",
        HEAD,
        HEAD + b"5\r\nhel",
        HEAD + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
    ],
)
async def test_an_answer_that_is_none_is_a_cut(answer: bytes) -> None:
    """Ended too early, or garbage: one and the same error."""

    async def understand(connection: EngineConnection) -> None:
        await connection.status()
        await connection.read_all()

    async with _asked(_says(answer)) as connection:
        with pytest.raises(CutError):
            await understand(connection)


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    """As HTTP/1.0 says it."""
    async with _asked(_says(b"HTTP/1.0 200 OK\r\n\r\nto the end")) as connection:
        assert (await connection.status(), await connection.read_all()) == (200, b"to the end")


async def test_silence_is_given_up() -> None:
    """After the patience nothing is waited for any longer; bytes that mean nothing yet are no silence."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/":
            writer.write(bytes([byte]))
            await asyncio.sleep(0.1)  # the time itself is the subject: together longer than the patience
        writer.write(b"1.1 200 OK\r\n\r\n")
        await reader.read()

    async with _asked(engine, patience=0.4) as connection:
        assert await connection.status() == 200
        with pytest.raises(SilentError):
            await connection.read()


async def test_nobody_there_is_not_reached(tmp_path: Path) -> None:
    """No socket file, one that nobody listens on, a closed port: nothing was sent."""
    with short_socket_folder() as folder, socket.socket(socket.AF_UNIX) as left, socket.socket() as unused:
        left.bind(str(folder / "left.sock"))
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for endpoint in (Endpoint(folder / "no.sock"), Endpoint(folder / "left.sock"), Endpoint(port=port)):
            with pytest.raises(NotReachedError):
                await ask(endpoint, post_bytes("/", {}, b""), 1.0)


async def test_an_engine_that_is_slow_to_take_connections_is_waited_for() -> None:
    """Prevents: the queue of a Unix socket was full for a moment, and requests failed with 502."""
    with short_socket_folder() as folder, socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(folder / "e.sock"))
        engine.listen(0)
        waiting = []
        asked = []
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                asked.append(await ask(Endpoint(folder / "e.sock"), post_bytes("/", {}, b""), 5.0))

            for _ in range(8):
                tasks.start_soon(one)
            await anyio.wait_all_tasks_blocked()
            engine.settimeout(0)
            while len(asked) < 8:
                with contextlib.suppress(BlockingIOError):
                    waiting.append(engine.accept()[0])
                await anyio.lowlevel.checkpoint()
        for connection in asked:
            connection.close()
        for accepted in waiting:
            accepted.close()


async def test_an_engine_is_not_read_faster_than_its_answer_is_taken() -> None:
    """What is held is bounded; taken again, all of it arrives."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    sent = 0
    full = anyio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await _request(reader)
        writer.write(HEAD)
        for number in range(200):
            writer.write(chunk)
            if number == 199:
                break
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                full.set()
                await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with _asked(engine) as connection:
        assert await connection.status() == 200
        await full.wait()
        assert sent < 40
        assert len(await connection.read_all()) == 200 * 0x10000


async def test_closing_is_noticed_by_the_engine() -> None:
    """It reads the end while it still answers."""
    noticed = anyio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(HEAD + b"1\r\nx\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        noticed.set()

    async with _asked(engine) as connection:
        assert await connection.read() == b"x"
        connection.close()
        await noticed.wait()


async def test_a_reader_in_no_hurry_gets_many_pieces_at_once() -> None:
    """The end is told at once, and all before it in one piece; without an end, what is there comes soon."""
    pieces = [b"1\r\n%d\r\n" % number for number in range(9)]
    held = anyio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(HEAD)
        for piece in pieces[:-1]:
            writer.write(piece)
            await writer.drain()
            await anyio.lowlevel.checkpoint()
        await held.wait()
        writer.write(pieces[-1] + b"0\r\n\r\n")
        await writer.drain()

    async with _asked(engine) as connection:
        got = [await connection.read(hurry=False)]
        while sum(map(len, got)) < 8:
            got.append(await connection.read(hurry=False))
        assert len(got) < 8
        held.set()
        assert await connection.read(hurry=False) == b"8"
        assert await connection.read(hurry=False) == b""


async def test_last_words_are_told_at_once() -> None:
    """An engine that says [DONE] and does not end its answer keeps nobody waiting."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(HEAD + b"e\r\ndata: [DONE]\n\n\r\n")
        await reader.read()

    async with _asked(engine) as connection:
        assert await connection.read(hurry=False) == b"data: [DONE]\n\n"


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
AGAIN = post_bytes("/v1/x", {}, b"{}", keeps=True)


async def test_a_kept_connection_carries_the_next_request() -> None:
    """One connection, one answer after the other."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await _request(reader)
            writer.write(WHOLE)

    kept = KeptConnections()
    async with _asked(engine) as connection:
        for _ in range(3):
            assert (await connection.status(), await connection.read_all()) == (200, b"ok")
            connection.keep(kept)
            assert kept.take() is connection
            connection.again(AGAIN, PATIENCE_SECONDS)
        kept.close()


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_kept_connection_that_the_engine_closes_is_stale(at: str) -> None:
    """Before the next request, it is not given out; with it, that may be sent again: nothing was answered."""

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(WHOLE)
        if at == "after":
            await _request(reader)

    kept = KeptConnections()
    async with _asked(engine) as connection:
        await connection.read_all()
        connection.keep(kept)
        if at == "before":
            with anyio.fail_after(PATIENCE_SECONDS):
                while kept.take() is not None:
                    kept.keep(connection)
                    await anyio.lowlevel.checkpoint()
            kept.close()
            return
        assert kept.take() is connection
        connection.again(AGAIN, PATIENCE_SECONDS)
        with pytest.raises(StaleError):
            await connection.status()
        kept.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        WHOLE + b"and more",
        HEAD + b"2\r\nok\r\n0\r\n\r\nand more",
    ],
)
async def test_a_connection_is_not_kept_against_the_engines_word(answer: bytes) -> None:
    """One that it closes, one that is too old to be kept, and one on which it says more than it was asked."""
    kept = KeptConnections()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(answer)
        await reader.read()

    async with _asked(engine) as connection:
        assert await connection.read_all() == b"ok"
        connection.keep(kept)
        assert kept.take() is None
        kept.close()


async def test_an_engine_that_speaks_unasked_loses_its_connection() -> None:
    """What came could be taken for the answer to the next request."""
    kept = KeptConnections()
    goes_on = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(WHOLE)
        await goes_on.wait()
        writer.write(WHOLE)
        await reader.read()

    async with _asked(engine) as connection:
        assert await connection.read_all() == b"ok"
        connection.keep(kept)
        goes_on.set()
        with anyio.fail_after(PATIENCE_SECONDS):
            while kept.take() is not None:
                kept.keep(connection)
                await anyio.lowlevel.checkpoint()
        kept.close()
