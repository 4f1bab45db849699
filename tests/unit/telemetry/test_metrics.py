"""Metrics: derived from events, bounded, and valid Prometheus text."""

import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from supervisor.builds.events import BuildHealthChanged
from supervisor.events import (
    BuildFound,
    BuildUnusable,
    DaemonListening,
    Event,
    EventBus,
    InstanceChanged,
    LaunchExited,
    LaunchReady,
    LaunchStarted,
    MemoryObserved,
    ModelFound,
    PlanMade,
    RequestDenied,
    RequestFinished,
    RequestLeased,
    SlotStuck,
)
from supervisor.memory_events import Evicted
from supervisor.sessions.events import SessionServed
from supervisor.telemetry.metrics import Metrics, Vitals
from supervisor.telemetry.pulse import CpuFigures, PoolFigures, Work
from tests.fakes.clock import HandClock

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _finished(
    model: str | None,
    *,
    status: int = 200,
    outcome: str = "ok",
    seconds: float = 0.3,
    first: float | None = 0.1,
    request: str = "r1",
) -> RequestFinished:
    return RequestFinished(request, "POST", "/v1/chat/completions", model, "c", status, outcome, seconds, first)


def _exited(kind: str, *, planned: bool) -> LaunchExited:
    return LaunchExited("m", "m", "m-1", "ready", 1, None, kind, "build", "why", planned, ())


async def _scrape(*events: Event) -> Series:
    bus = EventBus(HandClock(12.5))
    metrics = Metrics(bus, "1.2.3")
    for event in events:
        bus.publish(event)
    text, content_type = await metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def _value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((f"enginehouse_{name}", frozenset(labels.items())))


async def test_requests_are_counted_by_model_status_and_outcome() -> None:
    """Each ended request adds one, and its times go into the model's histograms."""
    series = await _scrape(
        ModelFound("m", 1, 1, ("chat",)),
        _finished("m"),
        _finished("m", seconds=700, first=None),
        _finished("m", status=502, outcome="upstream_died"),
        _finished(None, status=404, outcome="error"),
    )
    assert _value(series, "requests_total", model="m", status="200", outcome="ok") == 2
    assert _value(series, "requests_total", model="m", status="502", outcome="upstream_died") == 1
    assert _value(series, "requests_total", model="", status="404", outcome="error") == 1
    assert _value(series, "request_seconds_count", model="m") == 3
    assert _value(series, "request_seconds_bucket", model="m", le="0.25") == 0
    assert _value(series, "request_seconds_bucket", model="m", le="0.5") == 2
    assert _value(series, "request_seconds_bucket", model="m", le="+Inf") == 3
    assert _value(series, "request_seconds_sum", model="m") == pytest.approx(700.6)
    assert _value(series, "first_byte_seconds_count", model="m") == 2


async def test_an_instances_life_is_visible() -> None:
    """Launches, loads, exits by kind, and the state it is in now as the only 1."""
    series = await _scrape(
        LaunchStarted("m", "m", "m-1", 1, 1),
        LaunchReady("m", "m", "m-1", 0.7),
        _exited("CRASH", planned=False),
        _exited("UNKNOWN", planned=True),
        InstanceChanged("m", "m", "stopped", "starting", "asked", 1),
        InstanceChanged("m", "m", "starting", "ready", "answers", 1),
        SlotStuck("m", "m", 0, 5.0),
    )
    assert _value(series, "launches_total", model="m") == 1
    assert _value(series, "load_seconds_bucket", model="m", le="1.0") == 1
    assert _value(series, "launch_exits_total", model="m", kind="CRASH", blames="build", planned="false") == 1
    assert _value(series, "launch_exits_total", model="m", kind="UNKNOWN", blames="build", planned="true") == 1
    assert _value(series, "instance_state", model="m", state="ready") == 1
    assert _value(series, "instance_state", model="m", state="starting") == 0
    assert _value(series, "instance_state", model="m", state="failed") == 0
    assert _value(series, "stuck_slots_total", model="m") == 1


async def test_leases_and_denials_are_counted() -> None:
    """A lease counts as active until its request ended; a replay of the same request counts once as active."""
    leased = RequestLeased("r1", "m", "m", 0, 0.2, 0.0)
    series = await _scrape(leased, leased, RequestLeased("r2", "m", "m", 1, 0.2, 0.0))
    assert _value(series, "leases_total", model="m") == 3
    assert _value(series, "active_leases", model="m") == 2
    assert _value(series, "queue_seconds_count", model="m") == 3
    series = await _scrape(leased, _finished("m"), RequestDenied("r3", "m", "c", "queue_full", "why", 0.0))
    assert _value(series, "active_leases", model="m") == 0
    assert _value(series, "denials_total", model="m", code="queue_full") == 1


async def test_builds_and_the_daemon_describe_themselves() -> None:
    """A build is one row that says whether it can be chosen; a new inspection replaces the old row."""
    series = await _scrape(
        DaemonListening("127.0.0.1:8080", 0.4),
        BuildUnusable("cuda", "llama.cpp", "/x", "no driver"),
        BuildUnusable("cpu", "llama.cpp", "/y", "not there yet"),
        BuildFound("cpu", "llama.cpp", "/y", "b1", "f", None),
    )
    assert _value(series, "build_usable", build="cuda", engine="llama.cpp", version="") == 0
    assert _value(series, "build_usable", build="cpu", engine="llama.cpp", version="b1") == 1
    assert _value(series, "build_usable", build="cpu", engine="llama.cpp", version="") is None
    assert _value(series, "listening_seconds") == 0.4
    assert any(name == "enginehouse_info" and ("version", "1.2.3") in labels for name, labels in series)
    resident = series["process_resident_memory_bytes", frozenset()]
    assert 2**20 < resident < 2**40
    assert series["process_cpu_seconds_total", frozenset()] > 0


async def test_a_model_that_nobody_used_has_no_series() -> None:
    """A folder with a thousand models costs nothing until one of them is asked for."""
    series = await _scrape(*(ModelFound(f"m{number}", 1, 1, ("chat",)) for number in range(1000)))
    assert not [labels for _, labels in series if "model" in dict(labels)]
    assert _value(series, "listening_seconds") is None


async def test_names_that_clients_invent_make_no_series() -> None:
    """Unknown models, statuses and outcomes fall together, however many there are."""
    events = [_finished(f"made-up-{number}", status=number, outcome=f"o{number}") for number in range(1000, 1500)]
    denials = [RequestDenied("r", f"made-up-{number}", "c", f"code{number}", "w", 0.0) for number in range(500)]
    series = await _scrape(*events, *denials)
    assert _value(series, "requests_total", model="other", status="other", outcome="other") == 500
    assert len([key for key in series if key[0] == "enginehouse_requests_total"]) == 1
    assert len([key for key in series if key[0] == "enginehouse_denials_total"]) == 65


async def test_models_beyond_the_bound_share_a_series() -> None:
    """Cardinality has a roof even for models that are really there."""
    series = await _scrape(*(LaunchStarted("i", f"m{number}", "l", 1, 1) for number in range(300)))
    assert len([key for key in series if key[0] == "enginehouse_launches_total"]) == 257
    assert _value(series, "launches_total", model="other") == 44


async def test_every_event_is_counted_by_its_name_until_stopped() -> None:
    """Events without a rule of their own still show up; after `stop` nothing is listened to."""
    bus = EventBus(HandClock(12.5))
    metrics = Metrics(bus, "1")
    bus.publish(ModelFound("m", 1, 1, ()))
    assert b'enginehouse_events_total{event="model_found"} 1.0' in (await metrics.render())[0]
    metrics.stop()
    assert bus._listeners == []


def test_counting_imports_no_prometheus() -> None:
    """The library comes at the first scrape: a start doesn't pay for it."""
    code = (
        "import sys; from supervisor.telemetry.metrics import Metrics; from supervisor.clock import SystemClock\n"
        "from supervisor.events import EventBus, ModelFound; bus = EventBus(SystemClock()); Metrics(bus, '1')\n"
        "bus.publish(ModelFound('m', 1, 1, ()))\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in {'rich', 'prometheus_client', 'psutil'}]"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_tokens_and_their_times_are_counted() -> None:
    """The mean of an answer counts once for each of its tokens: long answers weigh more, as they do for who reads."""
    finished = RequestFinished("r", "POST", "/v1", "m", "c", 200, "ok", 3.0, 0.5, 100, 40, 20, 0.4, 0.08)
    series = await _scrape(ModelFound("m", 1, 1, ("chat",)), finished, finished, _finished("m"))
    assert _value(series, "generated_tokens_total", model="m") == 40
    assert _value(series, "prompt_tokens_total", model="m") == 200
    assert _value(series, "cached_tokens_total", model="m") == 80
    assert _value(series, "first_token_seconds_count", model="m") == 2
    assert _value(series, "token_seconds_count", model="m") == 40
    assert _value(series, "token_seconds_bucket", model="m", le="0.075") == 0
    assert _value(series, "token_seconds_bucket", model="m", le="0.1") == 40
    assert _value(series, "token_seconds_sum", model="m") == pytest.approx(3.2)


async def test_memory_is_told_while_a_model_is_loaded() -> None:
    """What is not known has no series, and neither has a model whose engine is gone."""
    seen = MemoryObserved("i", "m", {"host": {"predicted": 100, "mapped": 50, "declared": None, "observed": 90}})
    series = await _scrape(seen)
    assert _value(series, "instance_memory_bytes", model="m", pool="host", column="observed") == 90
    assert _value(series, "instance_memory_bytes", model="m", pool="host", column="declared") is None
    series = await _scrape(seen, _exited("KILLED", planned=False))
    assert _value(series, "instance_memory_bytes", model="m", pool="host", column="observed") is None


async def test_swaps_evictions_and_strikes() -> None:
    """A swap is timed from the first eviction for a model; a strike is the build's that the launch was planned on."""
    clock = HandClock(100.0)
    bus = EventBus(clock)
    metrics = Metrics(bus, "1")
    bus.publish(Evicted("a", "a", "b", "why", drained=False))
    clock.advance(3)
    bus.publish(Evicted("c", "c", "b", "why", drained=True))
    clock.advance(4)
    bus.publish(LaunchReady("b", "b", "b-1", 2.0))
    bus.publish(LaunchReady("b", "b", "b-2", 2.0))
    bus.publish(PlanMade("m", "cuda", ()))
    bus.publish(_exited("CRASH", planned=False))
    text = (await metrics.render())[0].decode()
    assert 'enginehouse_swap_seconds_sum{model="b"} 7.0' in text
    assert 'enginehouse_swap_seconds_count{model="b"} 1.0' in text
    assert 'enginehouse_evictions_total{drained="true",model="c"} 1.0' in text
    assert 'enginehouse_build_strikes_total{build="cuda"} 1.0' in text


async def test_the_health_of_a_build_is_one_of_four() -> None:
    """A build that is set aside is seen as such, and as nothing else."""
    series = await _scrape(
        BuildFound("cpu", "llama.cpp", "/y", "b1", "f", None),
        BuildHealthChanged("cpu", "llama.cpp", "f", "usable", "quarantined", "three strikes"),
    )
    assert _value(series, "build_health", build="cpu", engine="llama.cpp", health="quarantined") == 1
    assert _value(series, "build_health", build="cpu", engine="llama.cpp", health="usable") == 0


async def test_what_no_event_says_is_read_at_the_scrape() -> None:
    """The queue, the memory book and the quota; a figure that is not known has no series."""
    work = Work(5, 1, 2, {"host": PoolFigures(1000, 400, None), "gpu-x": PoolFigures(None, 7, None)})
    cpu = CpuFigures(1.5, 1, 1.5, "/f", "why", 200, 30, 1.25)
    metrics = Metrics(EventBus(HandClock()), "1", lambda: Vitals(work, cpu), _texts)
    text = (await metrics.render())[0].decode()
    for line in (
        "enginehouse_waiting_requests 2.0",
        'enginehouse_pool_budget_bytes{pool="host"} 1000.0',
        'enginehouse_pool_reserved_bytes{pool="gpu-x"} 7.0',
        "enginehouse_cpu_quota_cpus 1.5",
        "enginehouse_cpu_throttled_periods_total 30.0",
        "enginehouse_cpu_throttled_seconds_total 1.25",
        'llamacpp:x{model="m"} 3',
    ):
        assert line in text.splitlines()
    assert 'pool_budget_bytes{pool="gpu-x"}' not in text
    list(text_string_to_metric_families(text))


async def _texts() -> list[tuple[str, str]]:
    return [("m", "llamacpp:x 3\n")]


async def test_sessions_are_counted_by_how_they_were_found() -> None:
    """A hit saves the whole prompt's time; a new kind of outcome makes no new series."""
    served = [SessionServed("r", "m", "i", 0, outcome, 5, 9) for outcome in ("hit", "hit", "cold", "brand-new")]
    series = await _scrape(*served)
    assert _value(series, "sessions_total", model="m", outcome="hit") == 2
    assert _value(series, "sessions_total", model="m", outcome="other") == 1
