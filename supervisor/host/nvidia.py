"""NVIDIA cards by NVML: asked by one thread of its own, within a deadline; others read its last answer."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.host.cards import Card, CardsReading, pci_pool

# A driver in trouble can hold a call for minutes; nobody waits longer than this for a fresh answer.
DEADLINE_SECONDS = 1.0
# Answers younger than this are as good as new.
FRESH_SECONDS = 1.0
# Then the thread ends, and the driver may rest.
IDLE_SECONDS = 30.0
_LIBRARY_MISSING = "NVMLError_LibraryNotFound"
_NOT_FOUND = "NVMLError_DriverNotLoaded"


def load_nvml() -> Any:
    """The module ``pynvml``; None where it is not installed. Slow at first, so not before the address is open."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def read_nvml(nvml: Any) -> CardsReading:
    """Ask NVML once; never raises.

    A machine without the library or the driver has no cards, and no problem. Any other failure is one, of the whole or
    of one card: then cards can be missing that are there.

    Args:
        nvml: the module ``pynvml``, or anything with its functions; None: not installed.
    """
    if nvml is None:
        return CardsReading()
    try:
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001  pynvml raises classes that it makes as it goes
        absent = type(error).__name__ in {_LIBRARY_MISSING, _NOT_FOUND}
        return CardsReading(problem=None if absent else f"NVML: {error}", answered=True)
    cards: list[Card] = []
    problem: str | None = None
    try:
        for index in range(int(nvml.nvmlDeviceGetCount())):
            try:
                cards.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
            except Exception as error:  # noqa: BLE001  one lost card must not hide the others
                problem = f"NVML, card {index}: {error}"
    except Exception as error:  # noqa: BLE001  see above
        problem = f"NVML: {error}"
    finally:
        _quietly(nvml.nvmlShutdown)
    return CardsReading(tuple(sorted(cards, key=lambda card: card.pool)), problem, answered=True)


def _card(nvml: Any, handle: Any) -> Card:
    address = _quietly(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    pool = pci_pool(address) if address else f"gpu-{_text(nvml.nvmlDeviceGetUUID(handle))}"
    memory = _memory(nvml, handle)
    return Card(
        pool=pool,
        vendor="nvidia",
        name=_text(nvml.nvmlDeviceGetName(handle)),
        # Cards that share the host's memory (Jetson, GB10) know no memory of their own.
        total=None if memory is None else int(memory.total),
        used=None if memory is None else int(memory.used),
        reserved=int(getattr(memory, "reserved", 0) or 0),
        by_process=_processes(nvml, handle),
        source="NVML",
    )


def _memory(nvml: Any, handle: Any) -> Any:
    """Version 2 tells what the driver reserves apart; version 1 counts it as used."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        found = _quietly(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
        if found is not None:
            return found
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception as error:
        if type(error).__name__ == "NVMLError_NotSupported":
            return None
        raise


def _processes(nvml: Any, handle: Any) -> Mapping[int, int] | None:
    """Bytes by process; None where the driver names none that can be counted."""
    rows = _quietly(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if rows is None or any(row.usedGpuMemory is None for row in rows):
        return None
    held: dict[int, int] = {}
    for row in rows:
        held[int(row.pid)] = held.get(int(row.pid), 0) + int(row.usedGpuMemory)
    return held


def _quietly(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # noqa: BLE001  not supported by this card or driver: not known
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class NvidiaWatch:
    """The one who asks NVML: a thread that begins with a question and ends when nobody asks any more.

    A call that hangs holds that thread and nobody else; those who ask meanwhile get the last answer, and are told.
    """

    def __init__(self, load: Callable[[], Any] = load_nvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._clock = clock
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._answered = 0
        self._closed = False
        self._at: float | None = None
        self._reading = CardsReading()

    def read(self, fresh: float = FRESH_SECONDS, deadline: float = DEADLINE_SECONDS) -> CardsReading:
        """An answer at most ``fresh`` seconds old, or the last one when none comes within ``deadline`` seconds.

        Blocks for at most ``deadline``, so it is called from a thread. Before the first answer: no cards, and the
        reason as ``problem``.
        """
        with self._lock:
            if self._at is not None and self._clock() - self._at <= fresh:
                return self._reading
            self._ask()
            wanted = self._asked
            if self._lock.wait_for(lambda: self._answered >= wanted, deadline):
                return self._reading
            if self._at is None:
                return CardsReading(problem=f"NVML did not answer within {deadline:g} s")
            old = self._clock() - self._at
            return CardsReading(self._reading.cards, f"NVML did not answer; its figures are {old:.0f} s old")

    def close(self) -> None:
        """End the thread, unless a call holds it: then it ends with the process."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(DEADLINE_SECONDS)

    def _ask(self) -> None:
        if self._asked == self._answered:
            self._asked += 1
            self._lock.notify_all()
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._answer, name="nvml", daemon=True)
            self._thread.start()

    def _answer(self) -> None:
        nvml = self._load()
        held = False  # one start outlives the questions: without it the driver may load anew for each, for seconds
        while self._waits_for_question():
            held = held or (nvml is not None and _quietly(lambda: nvml.nvmlInit() or True) is True)
            reading = read_nvml(nvml)
            if held and reading.problem is not None:  # a driver that was reloaded answers only to a new start
                _quietly(nvml.nvmlShutdown)
                held = False
            if not self._tell(reading):
                break
        if held:
            _quietly(nvml.nvmlShutdown)

    def _waits_for_question(self) -> bool:
        with self._lock:
            asked = self._lock.wait_for(lambda: self._asked != self._answered or self._closed, IDLE_SECONDS)
            if asked and not self._closed:
                return True
            self._thread = None
            return False

    def _tell(self, reading: CardsReading) -> bool:
        """Whether it is worth staying: not on a machine without cards."""
        with self._lock:
            self._reading, self._at = reading, self._clock()
            self._answered = self._asked
            self._lock.notify_all()
            stays = bool(reading.cards or reading.problem)
            if not stays:
                self._thread = None
            return stays
