"""What the command line hands the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.config.load import LoadedConfig
from supervisor.gateway.address import OpenAddress
from supervisor.telemetry.logging import JsonLines
from supervisor.telemetry.redaction import Redactor

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

OnListening = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What the command line gives the daemon.

    Attributes:
        redactor: learns each launch's key, so that no log shows it.
        env: the process's environment.
        on_listening: called once with a status when builds and models are known.
        lines: writes events where the logger need not.
        address: the lock and the socket, opened before all this was imported; closed by who opened it.
        read: reads the config again for a reload; None: there is nothing to read.
    """

    logger: FilteringBoundLogger
    redactor: Redactor
    env: Mapping[str, str]
    address: OpenAddress
    on_listening: OnListening | None = None
    read: Callable[[], LoadedConfig] | None = None
    lines: JsonLines | None = None
