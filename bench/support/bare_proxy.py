"""The least that an aiohttp proxy can be: what the daemon's libraries cost without the daemon.

``python -m bench.support.bare_proxy SOCKET KEY``: passes every POST to the engine on SOCKET, unread; without
arguments it only listens. Prints one JSON line with its port and the seconds since its exec once it listens.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aiohttp
from aiohttp import web

from supervisor.processes.age import seconds_since_exec

_IDLE_SECONDS = 300.0
_STREAM = b'"stream":true'


class Proxy:
    """One handler; a session for whole answers, and one whose connections are used once, for streams."""

    def __init__(self, socket_path: str, key: str) -> None:
        self._keeping = _session(socket_path, force_close=False)
        # llama-server closes after a stream without saying so: such a connection must not be used again.
        self._closing = _session(socket_path, force_close=True)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass the body on and the answer back, piece by piece where it is a stream."""
        body = await request.read()
        session = self._closing if _STREAM in body else self._keeping
        async with await self._send(session, request.path, body) as upstream:
            kind = upstream.headers.get("Content-Type", "application/json")
            if not kind.startswith("text/event-stream"):
                whole = await upstream.read()
                return web.Response(status=upstream.status, body=whole, headers={"Content-Type": kind})
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": kind})
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    async def _send(self, session: aiohttp.ClientSession, path: str, body: bytes) -> aiohttp.ClientResponse:
        try:
            return await session.post(f"http://engine{path}", data=body, headers=self._headers)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # An idle connection that the engine had closed, as it does after 5 seconds.
            return await session.post(f"http://engine{path}", data=body, headers=self._headers)

    async def close(self) -> None:
        """Close the connections."""
        await self._keeping.close()
        await self._closing.close()


def _session(socket_path: str, *, force_close: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(path=socket_path, limit=0, force_close=force_close),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=_IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def serve(arguments: list[str]) -> None:
    """Listen on a free loopback port until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    app = web.Application(client_max_size=32 * 2**20)
    proxy = Proxy(arguments[0], arguments[1]) if arguments else None
    if proxy is not None:
        app.router.add_post("/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(json.dumps({"port": runner.addresses[0][1], "seconds_since_exec": seconds_since_exec()}), flush=True)
    await stop.wait()
    if proxy is not None:
        await proxy.close()
    await runner.cleanup()


def main() -> None:
    """On uvloop where it installs, as the daemon."""
    try:
        import uvloop  # noqa: PLC0415  not everywhere
    except ImportError:
        asyncio.run(serve(sys.argv[1:]))
    else:
        uvloop.run(serve(sys.argv[1:]))


if __name__ == "__main__":
    main()
