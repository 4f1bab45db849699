"""The functions of ``pynvml`` that are used, over recorded answers (tests/data/host/nvml)."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

_ANSWERS = Path(__file__).resolve().parents[1] / "data" / "host" / "nvml"


def _error(name: str) -> Exception:
    made: type[Exception] = type(name, (Exception,), {})
    return made(name.removeprefix("NVMLError_"))


class RecordedNvml:
    """Answers from a file.

    Attributes:
        starts: how often it was started, less how often it was stopped.
        gate: when set to an event, each count of cards waits for it, as a driver in trouble does.
    """

    def __init__(self, name: str) -> None:
        self.use(name)
        self.starts = 0
        self.asked = 0
        self.gate: Event | None = None

    def use(self, name: str) -> None:
        """Answer by another recording from now on."""
        self._recording: dict[str, Any] = json.loads((_ANSWERS / f"{name}.json").read_text())
        if "version_1" in self._recording:
            self.__dict__.pop("nvmlMemory_v2", None)
        else:
            self.nvmlMemory_v2 = 0x02000028

    def nvmlInit(self) -> None:  # noqa: N802  NVML's own name
        """Fail as recorded, or start."""
        if "init_error" in self._recording:
            raise _error(self._recording["init_error"])
        self.starts += 1

    def nvmlShutdown(self) -> None:  # noqa: N802  NVML's own name
        """Stop."""
        self.starts -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  NVML's own name
        """How many cards there are, once the gate is open."""
        self.asked += 1
        if self.gate is not None:
            assert self.gate.wait(30)
        return len(self._recording["cards"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802  NVML's own name
        """The card's row; a lost card raises."""
        card: dict[str, Any] = self._recording["cards"][index]
        if "error" in card:
            raise _error(card["error"])
        return card

    def nvmlDeviceGetPciInfo(self, handle: dict[str, Any]) -> SimpleNamespace:  # noqa: N802  NVML's own name
        """Where it is."""
        return SimpleNamespace(busId=self._text(handle["busId"]))

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str | bytes:  # noqa: N802  NVML's own name
        """What it is called for good."""
        return self._text(handle["uuid"])

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str | bytes:  # noqa: N802  NVML's own name
        """What it is."""
        return self._text(handle["name"])

    def nvmlDeviceGetMemoryInfo(  # noqa: N802  NVML's own name
        self, handle: dict[str, Any], version: int | None = None
    ) -> SimpleNamespace:
        """Version 1 counts what is reserved as used."""
        if "memory_error" in handle:
            raise _error(handle["memory_error"])
        figures = {"total": handle["total"], "used": handle["used"]}
        if version is None:
            figures["used"] += handle["reserved"]
        else:
            figures["reserved"] = handle["reserved"]
        return SimpleNamespace(**figures)

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802  NVML's own name
        self, handle: dict[str, Any]
    ) -> list[SimpleNamespace]:
        """Who holds how much."""
        return [SimpleNamespace(**row) for row in handle["processes"]]

    def _text(self, value: str) -> str | bytes:
        return value.encode() if "bytes" in self._recording else value
