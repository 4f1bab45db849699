"""TLS with the certificates of ``tests/data/tls``."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.clock import SystemClock
from supervisor.errors import ConfigError
from supervisor.events import CertificateLoaded, CertificateUnusable, EventBus
from supervisor.gateway.certificate import Certificate, CertificateFiles
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

DATA = Path(__file__).parents[2] / "data" / "tls"
CHAT = (Path(__file__).parents[2] / "data" / "gateway" / "chat.sse").read_bytes()
SAY_HI = {"model": "demo", "messages": [{"role": "user", "content": "Say hi"}]}


def put(folder: Path, name: str, *, key: str | None = None) -> CertificateFiles:
    """A pair in ``folder``, each file replaced as a whole, as tools that renew certificates do."""
    files = CertificateFiles(folder / "site.pem", folder / "site.key")
    for source, target in ((f"{name}.pem", files.certificate), (f"{key or name}.key", folder / "site.key")):
        fresh = target.with_suffix(".new")
        shutil.copyfile(DATA / source, fresh)
        fresh.replace(target)
    return files


def trusting(*names: str) -> ssl.SSLContext:
    """A client that knows these certificates."""
    context = ssl.create_default_context()
    for name in names:
        context.load_verify_locations(DATA / f"{name}.pem")
    return context


async def shown(gateway: RunningGateway, *, name: str | None = "localhost") -> str:
    """The common name of what a new connection is shown; ``name`` is what the client says it wants."""
    context = trusting("one", "two")
    context.check_hostname = False
    port = int(gateway.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "127.0.0.1")
    certificate: dict[str, Any] = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    await writer.wait_closed()
    return str(dict(pair[0] for pair in certificate["subject"])["commonName"]).rpartition(" ")[2]


def events(bus: EventBus) -> list[Any]:
    """What was said of certificates."""
    kinds = (CertificateLoaded, CertificateUnusable)
    return [record.event for record in bus.since(0) if isinstance(record.event, kinds)]


async def looked(certificate: Certificate) -> None:
    """Two looks: one that finds something new, one that finds it settled."""
    await certificate.check()
    await certificate.check()


async def test_the_gateway_speaks_tls(tmp_path: Path) -> None:
    """Whole answers and streams, to clients that check the certificate; not below TLS 1.2, and no plain HTTP."""
    certificate = Certificate(put(tmp_path, "one"), EventBus(SystemClock()))
    async with running_gateway(PlayedEngine(stream(CHAT)), tls=certificate.context) as gateway:
        assert gateway.url.startswith("https://")
        for body in (SAY_HI, SAY_HI | {"stream": True}):
            async with gateway.client.post("/v1/chat/completions", json=body, ssl=trusting("one")) as answer:
                assert answer.status == 200
                assert await answer.read()
        port = int(gateway.url.rsplit(":", 1)[1])
        old = trusting("one")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=old, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in await reader.read()
        writer.close()


@pytest.mark.parametrize("name", ["localhost", None])
async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, name: str | None) -> None:
    """To new connections, whether or not they say a name; those that are open go on."""
    bus = EventBus(SystemClock())
    certificate = Certificate(put(tmp_path, "one"), bus)
    async with running_gateway(PlayedEngine(stream(CHAT)), tls=certificate.context) as gateway:
        assert await shown(gateway, name=name) == "one"
        async with gateway.client.get("/admin/v1/events", ssl=trusting("one")) as open_before:
            await open_before.content.readline()
            put(tmp_path, "two")
            await looked(certificate)
            assert await shown(gateway, name=name) == "two"
            async with gateway.client.get("/healthz", ssl=trusting("two")) as answer:
                assert answer.status == 200
            assert not open_before.content.at_eof()
    assert events(bus) == [CertificateLoaded(str(tmp_path / "site.pem"))]


async def test_a_bad_file_keeps_the_old_certificate_and_says_so_once(tmp_path: Path) -> None:
    """And a good one after it is taken."""
    bus = EventBus(SystemClock())
    files = put(tmp_path, "one")
    certificate = Certificate(files, bus)
    async with running_gateway(PlayedEngine(stream(CHAT)), tls=certificate.context) as gateway:
        put(tmp_path, "two", key="one")
        await looked(certificate)
        await looked(certificate)
        assert await shown(gateway) == "one"
        (bad,) = events(bus)
        assert isinstance(bad, CertificateUnusable)
        assert "is not that of" in bad.reason
        files.certificate.unlink()
        await looked(certificate)
        await looked(certificate)
        assert await shown(gateway) == "one"
        put(tmp_path, "two")
        await looked(certificate)
        assert await shown(gateway) == "two"
    kinds = [type(event) for event in events(bus)]
    assert kinds == [CertificateUnusable, CertificateUnusable, CertificateLoaded]


async def test_two_files_that_change_one_after_the_other_make_no_noise(tmp_path: Path) -> None:
    """A look in between finds a pair that does not fit: it waits until nothing moves."""
    bus = EventBus(SystemClock())
    certificate = Certificate(put(tmp_path, "one"), bus)
    put(tmp_path, "two", key="one")
    await certificate.check()
    put(tmp_path, "two")
    await looked(certificate)
    assert [type(event) for event in events(bus)] == [CertificateLoaded]


async def test_it_looks_by_itself(tmp_path: Path) -> None:
    """As a task, at its interval."""
    bus = EventBus(SystemClock())
    certificate = Certificate(put(tmp_path, "one"), bus, interval=0.01)
    loaded = anyio.Event()
    bus.listen(lambda _record: loaded.set())
    async with anyio.create_task_group() as tasks:
        await tasks.start(certificate.run)
        put(tmp_path, "two")
        with anyio.fail_after(10):
            await loaded.wait()
        tasks.cancel_scope.cancel()


def test_one_file_may_hold_both(tmp_path: Path) -> None:
    """As some tools write it."""
    both = tmp_path / "both.pem"
    both.write_bytes((DATA / "one.key").read_bytes() + (DATA / "one.pem").read_bytes())
    assert Certificate(CertificateFiles(both), EventBus(SystemClock())).context.cert_store_stats()["x509"] == 0


@pytest.mark.parametrize(
    ("certificate", "key", "place", "said"),
    [
        ("gone.pem", "one.key", "listen.tls.certificate", "can't be read: No such file"),
        ("one.pem", "gone.key", "listen.tls.key", "can't be read: No such file"),
        (".", "one.key", "listen.tls.certificate", "can't be read: Is a directory"),
        ("one.pem", "two.key", "listen.tls.key", "is not that of"),
        ("one.pem", None, "listen.tls.certificate", "are no certificate and its key"),
        ("README.md", "one.key", "listen.tls.certificate", "are no certificate and its key"),
        ("one.pem", "README.md", "listen.tls.certificate", "are no certificate and its key"),
        ("one.pem", "locked.key", "listen.tls.key", "has a passphrase"),
    ],
)
def test_files_that_can_not_be_used_are_named(certificate: str, key: str | None, place: str, said: str) -> None:
    """At start, in the words of the config; and nothing asks for a passphrase on the terminal."""
    files = CertificateFiles(DATA / certificate, DATA / key if key else None)
    with pytest.raises(ConfigError) as caught:
        Certificate(files, EventBus(SystemClock()))
    assert caught.value.code == "config_invalid"
    (problem,) = caught.value.facts["problems"]
    assert problem.path == place
    assert said in problem.message
    assert problem.suggestion
