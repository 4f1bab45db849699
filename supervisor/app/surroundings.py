"""What the daemon takes from around it: its certificate, its data folder, and the signal that ends all patience."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator

import anyio

from supervisor.config.schema import Config
from supervisor.events import EventBus
from supervisor.gateway.certificate import Certificate, CertificateFiles
from supervisor.models.catalog import Catalog


def names_in(catalog: Catalog | None) -> frozenset[str]:
    """Ids of the models that can be served."""
    return frozenset(entry.id for entry in catalog.usable) if catalog else frozenset()


def make_data_dir(config: Config) -> None:
    """The folder that is searched unless the config says otherwise; one that can't be made is only not searched."""
    with contextlib.suppress(OSError):
        config.data_dir.mkdir(parents=True, exist_ok=True)


async def cancel_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    """A second signal ends the waiting; a reload does not."""
    async for number in signals:
        if number is not signal.SIGHUP:
            scope.cancel()


def certificate_of(config: Config, bus: EventBus) -> Certificate | None:
    """The certificate of ``listen.tls``; None: plain HTTP."""
    tls = config.listen.tls
    return None if tls.certificate is None else Certificate(CertificateFiles(tls.certificate, tls.key), bus)
