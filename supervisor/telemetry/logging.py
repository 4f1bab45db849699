"""Logs: one line per event, on stderr, as JSON for machines or plain lines for people, without secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from supervisor.errors import ConfigError
from supervisor.events import Event, EventBus, LaunchExited, Record
from supervisor.telemetry.encoding import to_json
from supervisor.telemetry.line_output import LineOutput
from supervisor.telemetry.redaction import Redactor

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor

_STYLE_VARIABLE = "ENGINEHOUSE_LOG"
_LEVEL_VARIABLE = "ENGINEHOUSE_LOG_LEVEL"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# An unplanned exit's log tail is up to hundreds of lines; the event stream has them all, the log the end.
_LOG_LINES = 5
_LOG_LINE_CHARACTERS = 300
# Names that the log line itself uses.
_RESERVED = frozenset({"event", "level", "timestamp", "logger", "exc_info", "exception"})


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How logs are written.

    Attributes:
        level: as in the standard library (``logging.INFO``); lower ones are dropped.
        colors: only ever on a terminal.
    """

    style: Literal["json", "console"]
    level: int
    colors: bool

    @classmethod
    def from_environment(cls, env: Mapping[str, str], *, on_terminal: bool) -> LogSettings:
        """JSON unless stderr is a terminal; ``ENGINEHOUSE_LOG`` and ``ENGINEHOUSE_LOG_LEVEL`` decide otherwise.

        Raises:
            ConfigError: ``config_invalid``: a value that is none of the known ones.
        """
        style = env.get(_STYLE_VARIABLE, "").lower() or ("console" if on_terminal else "json")
        if style not in {"json", "console"}:
            raise _unknown(_STYLE_VARIABLE, style, ("json", "console"))
        level = env.get(_LEVEL_VARIABLE, "").lower() or "info"
        if level not in _LEVELS:
            raise _unknown(_LEVEL_VARIABLE, level, tuple(_LEVELS))
        return cls(
            style=cast("Literal['json', 'console']", style),
            level=_LEVELS[level],
            colors=on_terminal and style == "console" and not env.get("NO_COLOR"),
        )


def configure_logging(
    settings: LogSettings, redactor: Redactor, *, stream: TextIO | None = None
) -> FilteringBoundLogger:
    """The daemon's logger; the standard library's logging (aiohttp, asyncio, warnings) goes into it as well.

    To be called once, by the command, before tasks start. ``stream`` is stderr unless given; a stream that can't be
    written to any more (closed pipe, full disk) loses lines and stops nothing.
    """
    structlog = _import_structlog()
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        _add_timestamp,
        structlog.processors.format_exc_info,
        lambda _logger, _method, event_dict: redactor.clean(event_dict),
        _renderer(structlog, settings),
    ]
    logger = structlog.wrap_logger(
        LineOutput(stream or sys.stderr, _dropped_note(settings)),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        context_class=dict,
        cache_logger_on_first_use=True,
    ).bind()
    _route_standard_logging(logger, settings.level)
    return cast("FilteringBoundLogger", logger)


class JsonLines:
    """Writes events as the logger would, for a quarter of the CPU: there is a line for each request."""

    def __init__(self, redactor: Redactor, *, stream: TextIO | None = None) -> None:
        self._redactor = redactor
        self._lines = LineOutput(stream or sys.stderr, _dropped_json)
        self._second = -1
        self._stamp = ""

    def write(self, at: float, event: Event) -> None:
        """One line; ``at`` is wall time."""
        line = {"timestamp": self._timestamp(at), "level": _level(event), "event": event.name()}
        self._lines.msg(to_json({**line, **self._redactor.clean(_facts(event))}).decode())

    def _timestamp(self, at: float) -> str:
        second, thousandth = divmod(int(at * 1000), 1000)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")
        return f"{self._stamp}.{thousandth:03d}Z"


def json_lines(settings: LogSettings, redactor: Redactor) -> JsonLines | None:
    """What writes events where logs are JSON; None: the logger does."""
    return JsonLines(redactor) if settings.style == "json" else None


def log_events(bus: EventBus, logger: FilteringBoundLogger, lines: JsonLines | None = None) -> Callable[[], None]:
    """Write one line per event from now on, through ``lines`` if given; call the answer to stop."""
    enabled = {name: logger.is_enabled_for(level) for name, level in _LEVELS.items()}

    def write(record: Record) -> None:
        event = record.event
        level = _level(event)
        if not enabled[level]:
            return  # most events of a request: nothing is made for them
        if lines is not None:
            lines.write(record.at, event)
        else:
            logger.log(_LEVELS[level], event.name(), timestamp=record.at, **_facts(event))

    return bus.listen(write)


def _level(event: Event) -> str:
    if isinstance(event, LaunchExited) and not event.planned:
        return "warning"
    return event.level


def _facts(event: Event) -> dict[str, Any]:
    facts = event.facts()
    if isinstance(event, LaunchExited):
        kept = [] if event.planned else [line[:_LOG_LINE_CHARACTERS] for line in event.log[-_LOG_LINES:]]
        facts |= {"log": kept, "log_lines": len(event.log)}
    return {f"{key}_" if key in _RESERVED else key: value for key, value in facts.items()}


def _dropped_json(count: int) -> str:
    said = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"}
    return to_json({**said, "level": "warning", "event": "log_lines_dropped", "count": count}).decode()


def _dropped_note(settings: LogSettings) -> Callable[[int], str]:
    if settings.style == "json":
        return _dropped_json
    return lambda count: f"{count} log lines were dropped here: nobody read them"


class _IntoStructlog(logging.Handler):
    """Passes the standard library's records on."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # wrong arguments in somebody's log call
            text = f"{record.msg} {record.args}"
        extra = {"exc_info": record.exc_info} if record.exc_info else {}
        # structlog knows the five named levels only.
        level = max(logging.DEBUG, min(logging.CRITICAL, record.levelno // 10 * 10))
        self._logger.bind(logger=record.name, timestamp=record.created, **extra).log(level, "%s", text)


def _route_standard_logging(logger: FilteringBoundLogger, level: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(_IntoStructlog(logger))
    root.setLevel(level)
    # At debug level they report each selector and each connection.
    for chatty in ("asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)


def _add_timestamp(_logger: Any, _method: str, event_dict: EventDict) -> EventDict:
    at = event_dict.pop("timestamp", None)
    moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else datetime.now(UTC)
    event_dict["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event_dict


def _renderer(structlog: Any, settings: LogSettings) -> Processor:
    if settings.style == "json":
        return _to_json
    renderer: Processor = structlog.dev.ConsoleRenderer(
        colors=settings.colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
    )
    return renderer


def _to_json(_logger: Any, _method: str, event_dict: EventDict) -> str:
    ordered = {key: event_dict.pop(key) for key in ("timestamp", "level", "event") if key in event_dict}
    return to_json({**ordered, **event_dict}).decode()


def _import_structlog() -> Any:
    """The library without rich: it imports rich for colourful tracebacks, which costs 0.1 s and isn't used here."""
    blocked = "rich" not in sys.modules and "structlog" not in sys.modules
    if blocked:
        sys.modules["rich"] = cast("Any", None)  # how Python spells "not installed"
    try:
        import structlog  # noqa: PLC0415  costs half of what telemetry may
    finally:
        if blocked:
            del sys.modules["rich"]
    return structlog


def _unknown(variable: str, value: str, known: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        "config_invalid",
        f"{variable} is {value!r}: use one of {', '.join(known)}, or leave it unset.",
        variable=variable,
        value=value,
    )
