"""Log lines: their form, their level, and that they stop nothing."""

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.errors import ConfigError
from supervisor.events import EventBus, LaunchExited, ModelBroken, RequestFinished, RequestQueued
from supervisor.telemetry.logging import JsonLines, LogSettings, configure_logging, log_events
from supervisor.telemetry.redaction import Redactor
from tests.fakes.clock import HandClock


@pytest.fixture(autouse=True)
def _standard_logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def _json(level: int = logging.INFO) -> LogSettings:
    return LogSettings(style="json", level=level, colors=False)


def _exited(*, planned: bool, lines: int = 40) -> LaunchExited:
    return LaunchExited(
        instance="m",
        model="m",
        launch="m-1",
        phase="ready",
        exit_code=None,
        signal=9,
        kind="KILLED",
        blames="nobody",
        why="somebody killed it",
        planned=planned,
        log=tuple(f"line {number} " + "x" * 1000 for number in range(lines)),
    )


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_logs_are_json_in_a_pipe_and_plain_on_a_terminal() -> None:
    """Without any setting the form follows stderr; colours are for terminals."""
    assert LogSettings.from_environment({}, on_terminal=False) == LogSettings("json", logging.INFO, colors=False)
    assert LogSettings.from_environment({}, on_terminal=True) == LogSettings("console", logging.INFO, colors=True)


def test_the_environment_decides_form_level_and_colour() -> None:
    """ENGINEHOUSE_LOG, ENGINEHOUSE_LOG_LEVEL and NO_COLOR win over the terminal."""
    env = {"ENGINEHOUSE_LOG": "console", "ENGINEHOUSE_LOG_LEVEL": "DEBUG"}
    assert LogSettings.from_environment(env, on_terminal=False) == LogSettings("console", logging.DEBUG, colors=False)
    assert not LogSettings.from_environment({"NO_COLOR": "1"}, on_terminal=True).colors


@pytest.mark.parametrize("variable", ["ENGINEHOUSE_LOG", "ENGINEHOUSE_LOG_LEVEL"])
def test_an_unknown_setting_says_what_is_known(variable: str) -> None:
    """A typo in a log setting is a wrong call, and the message lists what would be right."""
    with pytest.raises(ConfigError, match=f"{variable} is 'loud': use one of .*(json|debug)"):
        LogSettings.from_environment({variable: "loud"}, on_terminal=False)


def test_an_event_is_one_line_with_its_name_its_level_and_its_facts() -> None:
    """The line carries the event's own time, not the writer's."""
    stream = io.StringIO()
    bus = EventBus(HandClock(1_700_000_000.25))
    log_events(bus, configure_logging(_json(), Redactor(), stream=stream))
    bus.publish(ModelBroken("m", "/models/m.gguf", "cut short"))
    assert _lines(stream) == [
        {
            "timestamp": "2023-11-14T22:13:20.250Z",
            "level": "warning",
            "event": "model_broken",
            "model": "m",
            "path": "/models/m.gguf",
            "reason": "cut short",
        }
    ]


def test_the_quick_way_writes_what_the_logger_writes() -> None:
    """Every kind of fact, a secret among them, and times on both sides of a second."""
    clock = HandClock(1_700_000_000.999)
    redactor = Redactor(["hunter2"])
    slow, quick = io.StringIO(), io.StringIO()
    bus = EventBus(clock)
    logger = configure_logging(_json(), redactor, stream=slow)
    log_events(bus, logger)
    log_events(bus, logger, JsonLines(redactor, stream=quick))
    for event in (
        _exited(planned=False),
        ModelBroken("m", None, "it is hunter2, or Bearer abcdefghijkl\n"),
        RequestQueued("r", "m", "c", 1),
        RequestFinished("r", "POST", "/v1/é\udcff", "m", "c", 200, "ok", 0.25, None),
    ):
        bus.publish(event)
        clock.advance(0.0015)
    assert quick.getvalue() == slow.getvalue()
    assert len(_lines(quick)) == 3
    assert "hunter2" not in quick.getvalue()


def test_an_event_below_the_level_is_not_written() -> None:
    """Per-request details are debug and stay out by default."""
    stream = io.StringIO()
    bus = EventBus(HandClock(1_700_000_000.25))
    stop = log_events(bus, configure_logging(_json(), Redactor(), stream=stream))
    bus.publish(RequestQueued("r", "m", "c", 1))
    assert stream.getvalue() == ""
    stop()
    bus.publish(ModelBroken("m", None, "x"))
    assert stream.getvalue() == ""


def test_an_unplanned_exit_is_a_warning_with_the_end_of_its_log() -> None:
    """The log shows the last lines, cut, and how many there were; a planned exit shows none."""
    stream = io.StringIO()
    bus = EventBus(HandClock(1_700_000_000.25))
    log_events(bus, configure_logging(_json(), Redactor(), stream=stream))
    bus.publish(_exited(planned=False))
    bus.publish(_exited(planned=True))
    crashed, stopped = _lines(stream)
    assert (crashed["level"], crashed["log_lines"], len(crashed["log"])) == ("warning", 40, 5)
    assert crashed["log"][-1].startswith("line 39 ")
    assert len(crashed["log"][-1]) == 300
    assert (stopped["level"], stopped["log"]) == ("info", [])


def test_secrets_do_not_reach_the_log() -> None:
    """Keys, registered strings and tracebacks are cleaned in both forms."""
    for style in ("json", "console"):
        stream = io.StringIO()
        settings = LogSettings(style=style, level=logging.INFO, colors=False)
        logger = configure_logging(settings, Redactor(["hunter2"]), stream=stream)
        logger.info("with hunter2", api_key="whatever", nested={"token": "whatever"})
        try:
            int("hunter2 inside")
        except ValueError:
            logger.exception("failed")
        text = stream.getvalue()
        assert "hunter2" not in text
        assert "whatever" not in text
        assert "'*** inside'" in text


def test_the_standard_librarys_logging_goes_the_same_way() -> None:
    """Errors of aiohttp and Python's warnings are lines of the same form; broken log calls are shown, not raised."""
    stream = io.StringIO()
    configure_logging(_json(), Redactor(["hunter2"]), stream=stream)
    logging.getLogger("aiohttp.server").error("bad %s %d%%", "hunter2", 3)
    logging.getLogger("aiohttp.server").debug("too quiet")
    logging.getLogger("x").log(25, "between %d", "no number")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    first, second, third = _lines(stream)
    assert (first["event"], first["level"], first["logger"]) == ("bad *** 3%", "error", "aiohttp.server")
    assert second["event"] == "between %d ('no number',)"
    assert "careful" in third["event"]


def test_a_stream_that_is_gone_stops_nothing() -> None:
    """With stderr closed the daemon goes on without logs."""
    stream = io.StringIO()
    bus = EventBus(HandClock(1_700_000_000.25))
    log_events(bus, configure_logging(_json(), Redactor(), stream=stream))
    stream.close()
    bus.publish(ModelBroken("m", None, "x"))
    assert len(bus.since(0)) == 1


def test_broken_unicode_and_odd_types_are_written_somehow() -> None:
    """Regression guard: a file name that isn't UTF-8 makes orjson raise, inside whoever published the event."""
    stream = io.StringIO()
    bus = EventBus(HandClock(1_700_000_000.25))
    log_events(bus, configure_logging(_json(), Redactor(), stream=stream))
    bus.publish(ModelBroken("m", "/models/\udcff.gguf", "x"))
    bus.publish(ModelBroken("m", None, str(2**70)))
    assert _lines(stream)[0]["path"] == "/models/\udcff.gguf"


def test_setting_up_logs_imports_no_rich() -> None:
    """A start must not pay for colourful tracebacks, and rich must still be importable afterwards."""
    code = (
        "import sys; from supervisor.telemetry.logging import *; from supervisor.telemetry.redaction import Redactor\n"
        "configure_logging(LogSettings.from_environment({}, on_terminal=True), Redactor()).info('up')\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in {'rich', 'prometheus_client'}]\n"
        "import rich.console"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "up" in ended.stderr
