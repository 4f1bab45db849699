"""How the daemon ends: what runs is finished or told, engines stop, and nothing of it is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.support.sockets import short_socket_folder
from tests.wire.asking import CHAT, LOG_ALL, Request, ask, asking, chat_body, connect, endless, instance

# How much later than said things may be seen to end on a busy machine.
LENIENCY = 2.0
QUICK_STOP = {"stop": {"grace": "1s"}}


@contextmanager
def daemon_with(folder: Path, faults: dict[str, Any] | None = None, **sections: Any) -> Iterator[Daemon]:
    """A daemon over the model ``m``, whose sockets are in ``folder/../sockets``; it must leave none behind."""
    with short_socket_folder() as sockets:
        models = {
            "m": {"file": str(tiny_model(folder, **{"chunk_delay": 0.02, **(faults or {})})), "launch": {"slots": 1}}
        }
        config = daemon_config(fake_build(folder), models=models, runtime_dir=str(sockets), **sections)
        with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
            yield daemon
        assert list(sockets.iterdir()) == []


def ended_within(daemon: Daemon, seconds: float) -> None:
    """Hold that the daemon ends by itself in this time, with exit code 0 and no bug in its log."""
    began = time.monotonic()
    assert daemon.process.wait(seconds + 10) == 0, daemon.log_text()
    assert time.monotonic() - began <= seconds + LENIENCY
    faults = [
        row for row in daemon.records if row.get("event") == "internal_error" or "Traceback" in str(row.get("raw"))
    ]
    assert not faults, "\n".join(str(fact) for row in faults for fact in row.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(tmp_path: Path, number: signal.Signals) -> None:
    """Asked to end while idle, the daemon stops its engine and exits with 0 at once, well before any time-out."""
    with daemon_with(tmp_path) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        [engine] = daemon.engines()
        daemon.send(number)
        ended_within(daemon, 1)
        assert not engine.is_running()
        stopped = daemon.wait_for_event("launch_exited")
        assert (stopped["planned"], stopped["phase"]) == (True, "stopping")


def test_a_stream_is_drained(tmp_path: Path) -> None:
    """A stream that runs when the signal comes is finished, within the drain; new requests are refused meanwhile."""
    with daemon_with(tmp_path, shutdown={"drain": "20s", "total": "25s"}) as daemon:
        with asking(daemon, chat_body("m", stream=True, ignore_eos=True, max_tokens=100), id="runs") as running:
            running.next_text()
            daemon.send(signal.SIGTERM)
            daemon.wait_for_event("daemon_stopping")
            refused = ask(daemon, CHAT, chat_body("m"))
            assert (refused.status, refused.error["code"]) == (503, "draining")
            assert int(refused.headers["Retry-After"]) <= 60
            assert ask(daemon, "/readyz").status == 503
            assert ask(daemon, "/healthz").status == 200
            events = running.answer().events
        assert events[-1] == "[DONE]"
        assert not [event for event in events if "error" in event]
        ended_within(daemon, 2)


def test_a_whole_answer_is_drained(tmp_path: Path) -> None:
    """A request that is not streamed gets its answer too."""
    with daemon_with(tmp_path, shutdown={"drain": "20s", "total": "25s"}) as daemon:
        with asking(daemon, chat_body("m", ignore_eos=True, max_tokens=50), id="runs") as running:
            daemon.wait_for_event("request_leased", request_id="runs")
            daemon.send(signal.SIGTERM)
            answer = running.answer()
        assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 50)
        ended_within(daemon, 2)


def test_over_the_drain(tmp_path: Path) -> None:
    """A stream that outlives the drain is cut with one error event, and no [DONE]; all ends in the total time."""
    with daemon_with(tmp_path, shutdown={"drain": "500ms", "total": "5s"}, supervision=QUICK_STOP) as daemon:
        with asking(daemon, endless("m"), id="runs") as running:
            running.next_text()
            daemon.send(signal.SIGTERM)
            daemon.wait_for_event("daemon_stopping")
            began = time.monotonic()
            events = running.answer().events
            assert 0.3 <= time.monotonic() - began <= 0.5 + LENIENCY
        assert events[-1]["error"]["code"] == "draining"
        assert sum("error" in event for event in events) == 1
        assert "[DONE]" not in events
        ended_within(daemon, 4.5)


def test_a_whole_answer_over_the_drain(tmp_path: Path) -> None:
    """A request that is not streamed and outlives the drain is a 503."""
    with daemon_with(tmp_path, shutdown={"drain": "500ms", "total": "5s"}, supervision=QUICK_STOP) as daemon:
        with asking(daemon, {**endless("m"), "stream": False}, id="runs") as running:
            daemon.wait_for_event("request_leased", request_id="runs")
            daemon.send(signal.SIGTERM)
            answer = running.answer()
        assert (answer.status, answer.error["code"]) == (503, "draining")
        ended_within(daemon, 4.5)


def test_who_waits_is_told_at_once(tmp_path: Path) -> None:
    """Queued requests hear that the daemon stops right away; they are not kept waiting for the drain."""
    with daemon_with(tmp_path, shutdown={"drain": "3s", "total": "9s"}, supervision=QUICK_STOP) as daemon:
        with asking(daemon, endless("m"), id="runs") as running:
            running.next_text()
            with asking(daemon, chat_body("m"), id="waits") as waiting:
                daemon.wait_for_event("request_queued", request_id="waits")
                daemon.send(signal.SIGTERM)
                answer = waiting.answer()
            assert (answer.status, answer.error["code"]) == (503, "draining")
            assert running.next_text()
            running.leave()
        ended_within(daemon, 3)


def test_while_an_engine_loads(tmp_path: Path) -> None:
    """A load is not waited for: who waits for it is refused, the half-loaded engine is stopped."""
    with daemon_with(tmp_path, {"load_seconds": 30}, supervision=QUICK_STOP) as daemon:
        with asking(daemon, chat_body("m"), id="waits") as waiting:
            daemon.wait_for_event("launch_started")
            daemon.send(signal.SIGTERM)
            answer = waiting.answer()
        assert (answer.status, answer.error["code"]) == (503, "draining")
        ended_within(daemon, 2)


def test_a_load_by_hand_is_cut(tmp_path: Path) -> None:
    """Who loads a model by hand while the daemon stops gets an answer, too."""
    shutdown = {"drain": "500ms", "total": "5s"}
    with daemon_with(tmp_path, {"load_seconds": 30}, supervision=QUICK_STOP, shutdown=shutdown) as daemon:
        request = Request(daemon, "/admin/v1/models/m/load", b"", id="load")
        daemon.wait_for_event("launch_started")
        daemon.send(signal.SIGTERM)
        answer = request.answer()
        request.leave()
        assert answer.status == 503
        ended_within(daemon, 4.5)


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    """Whoever asks twice does not want to wait: the drain ends, running streams are told, and the daemon goes."""
    with daemon_with(tmp_path, shutdown={"drain": "40s", "total": "45s"}) as daemon:
        with asking(daemon, endless("m"), id="runs") as running:
            running.next_text()
            daemon.send(signal.SIGTERM)
            daemon.wait_for_event("daemon_stopping")
            assert running.next_text()
            daemon.send(signal.SIGTERM)
            began = time.monotonic()
            events = running.answer().events
            ended_within(daemon, 2)
            assert time.monotonic() - began <= 3 + LENIENCY
        assert events[-1]["error"]["code"] == "draining"


def test_engine_that_ignores_sigterm(tmp_path: Path) -> None:
    """An engine that does not stop when asked is killed after the grace."""
    with daemon_with(tmp_path, {"ignore_sigterm": True}, supervision=QUICK_STOP) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        [engine] = daemon.engines()
        daemon.send(signal.SIGTERM)
        ended_within(daemon, 2)
        assert not engine.is_running()
        exited = daemon.wait_for_event("launch_exited")
        assert (exited["signal"], exited["planned"]) == (9, True)


def test_the_total_time_ends_every_grace(tmp_path: Path) -> None:
    """With less total time than an engine's grace, the total holds."""
    shutdown = {"drain": "500ms", "total": "1500ms"}
    stop = {"stop": {"grace": "30s"}}
    with daemon_with(tmp_path, {"ignore_sigterm": True}, supervision=stop, shutdown=shutdown) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        [engine] = daemon.engines()
        daemon.send(signal.SIGTERM)
        ended_within(daemon, 1.5)
        assert not engine.is_running()


@pytest.mark.parametrize("kind", ["group", "session"])
def test_grandchildren(tmp_path: Path, kind: str) -> None:
    """What an engine started itself goes with it, even from a session of its own."""
    with daemon_with(tmp_path, {"grandchild": kind}, supervision=QUICK_STOP) as daemon:
        assert ask(daemon, CHAT, chat_body("m")).status == 200
        family = daemon.engines()
        assert len(family) == 2
        daemon.send(signal.SIGTERM)
        ended_within(daemon, 2)
        _, alive = psutil.wait_procs(family, timeout=1)
        assert alive == []


def test_event_streams_end(tmp_path: Path) -> None:
    """A client that follows the daemon's events does not hold up its end."""
    with daemon_with(tmp_path) as daemon, closing(connect(daemon)) as connection:
        connection.request("GET", "/admin/v1/events")
        assert connection.getresponse().readline().startswith(b":")
        daemon.send(signal.SIGTERM)
        ended_within(daemon, 1)


def test_killed_daemon_leaves_no_engine(tmp_path: Path) -> None:
    """When the daemon itself is killed with SIGKILL, the kernel ends its engines; the next daemon just starts."""
    with short_socket_folder() as sockets:
        models = {"m": {"file": str(tiny_model(tmp_path)), "launch": {"slots": 1}}}
        config = daemon_config(fake_build(tmp_path), models=models, runtime_dir=str(sockets))
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            engines = daemon.engines()
            assert engines
            daemon.send(signal.SIGKILL)
            daemon.process.wait(5)
            _, alive = psutil.wait_procs(engines, timeout=2)
            assert alive == []
        with running_daemon_sync(tmp_path, config) as daemon:
            assert ask(daemon, CHAT, chat_body("m")).status == 200
            assert instance(daemon, "m")["generation"] == 1
        assert list(sockets.iterdir()) == [], "sockets of the killed daemon are left"


def test_killed_while_an_engine_loads(tmp_path: Path) -> None:
    """An engine that is still loading when the daemon is killed dies as well."""
    models = {"m": {"file": str(tiny_model(tmp_path, load_seconds=30))}}
    with (
        running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models)) as daemon,
        asking(daemon, chat_body("m"), id="waits"),
    ):
        daemon.wait_for_event("launch_started")
        engines = daemon.engines()
        assert engines
        daemon.send(signal.SIGKILL)
        daemon.process.wait(5)
        _, alive = psutil.wait_procs(engines, timeout=2)
        assert alive == []
