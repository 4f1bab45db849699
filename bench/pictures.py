"""Pictures by the real sd-server with toy models: what the way through the daemon costs, cancelling, swaps, memory.

The engine is compiled from its source package on PyPI, once (``python -m tests.support.sd_server``). By hand: the same
server with the flags that the daemon gives it, asked over a route that answers with the picture, and over its own job
interface each 10 ms. All ways take turns; ratios are taken pair by pair.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.support.daemon import Daemon, running_daemon, stop_process
from bench.support.engines import add_engine_options, real_build, real_model
from bench.support.errors import BenchError
from bench.support.machine import own_bytes
from bench.support.report import Progress, Table, mebibytes, milliseconds, options, run
from bench.support.sides import DAEMON
from bench.support.stats import Samples, show_ratio, verdict
from engines.formats.diffusion import read_parts
from engines.pictures import PictureWish
from engines.sd_cpp.memory import working_set
from engines.sd_cpp.settings import SdCppSettings
from tests.support.sd_server import CantBuildError, build
from tests.support.sockets import free_port
from tests.support.toy_pictures import ToyModels, make_toys

_TARGET = 1.03
_ROUTE = "the engine's own route, which answers when it is done"
_NATIVE = "the engine's own jobs, asked for each 10 ms"
_SEED = 7
_WAIT_SECONDS = 120.0


def main() -> None:
    """The command."""
    parser = options(__doc__)
    add_engine_options(parser, model=True)
    parser.add_argument("--rounds", type=int, help="pictures of each way (default 15, quick 2)")
    run("pictures", parser, measure)


def measure(chosen: argparse.Namespace) -> list[Table]:
    """Four tables."""
    rounds = chosen.rounds or (2 if chosen.quick else 15)
    try:
        server = build(2)
    except CantBuildError as error:
        raise BenchError(f"there is no sd-server: {error}") from error
    with tempfile.TemporaryDirectory(prefix="eh-bench-") as name:
        folder = Path(name)
        toys = make_toys(folder / "toys")
        say = Progress()
        with running_daemon(folder, _config(server, toys)) as daemon:
            daemon.wait_until_known()
            tables = [_overhead(daemon, rounds, say), _cancelling(daemon, max(2, rounds // 3), say)]
        tables.append(_swaps(folder, server, toys, chosen, max(2, rounds // 5)))
        tables.append(_memory(server, toys, (128, 256) if chosen.quick else (64, 128, 256, 512), say))
        say.done()
    return tables


def _config(server: Path, toys: ToyModels, **sections: Any) -> dict[str, Any]:
    launch = {"width": 128, "height": 128, "steps": 4, "cfg_scale": 1}
    return {
        "version": 1,
        "engines": {"stable-diffusion.cpp": {"builds": [{"name": "toy", "executable": str(server)}]}},
        "models": {"paint": {"engine": "stable-diffusion.cpp", "files": toys.ovis, "launch": launch}},
        **sections,
    }


def _picture(size: int, steps: int) -> dict[str, Any]:
    return {"model": "paint", "prompt": "a cat", "size": f"{size}x{size}", "steps": steps, "seed": _SEED}


def _overhead(daemon: Daemon, rounds: int, say: Progress) -> Table:
    """One engine at a time draws: two would share the cores."""
    daemon.ask("POST", "/v1/images/generations", _picture(128, 4))
    status = daemon.ask("GET", "/admin/v1/status")["instances"][0]
    argv = psutil.Process(status["pid"]).cmdline()
    seen = {_ROUTE: Samples(), _NATIVE: Samples(), DAEMON: Samples()}
    with _by_hand(argv) as port:
        _native(port, 128, 4)
        for number in range(rounds):
            say(f"picture {number + 1} of {rounds}")
            ways = list(seen)
            for way in ways if number % 2 else reversed(ways):
                began = time.perf_counter()
                if way == DAEMON:
                    daemon.ask("POST", "/v1/images/generations", _picture(128, 4))
                elif way == _ROUTE:
                    _by_route(port, 128, 4)
                else:
                    _native(port, 128, 4)
                seen[way].add([time.perf_counter() - began])
    table = Table(
        "One picture of 128 x 128, 4 steps", ["way", "median", "99 %", "ratio (range over pairs)", "pictures"]
    )
    for way, own in seen.items():
        ratio = "1 (baseline)" if way == _ROUTE else show_ratio(own.ratios(seen[_ROUTE]))
        table.row(way, milliseconds(own.median), milliseconds(own.p99), ratio, str(own.count))
    middle = statistics.median(seen[DAEMON].ratios(seen[_ROUTE]))
    table.notes.append(
        f"target: at most {_TARGET:.2f}; median of the pairs' ratios {middle:.3f}: {verdict(middle, _TARGET)}"
    )
    return table


def _cancelling(daemon: Daemon, rounds: int, say: Progress) -> Table:
    answered, freed, served = [], [], []
    for number in range(rounds):
        say(f"cancelled picture {number + 1} of {rounds}")
        daemon.ask("POST", "/v1/images/generations", _picture(64, 1))  # the engine is there
        job = daemon.ask_for(202, "POST", "/v1/images/jobs", _picture(256, 100))["id"]
        _until(lambda job=job: daemon.ask("GET", f"/v1/images/jobs/{job}")["progress"].get("step", 0) >= 3)
        began = time.perf_counter()
        daemon.ask("DELETE", f"/v1/images/jobs/{job}")
        answered.append(time.perf_counter() - began)
        _until(lambda: not any(row["leases"] for row in daemon.ask("GET", "/admin/v1/status")["instances"]))
        freed.append(time.perf_counter() - began)
        daemon.ask("POST", "/v1/images/generations", _picture(64, 1))
        served.append(time.perf_counter() - began)
    table = Table("Cancelled at step 3 of 100", ["from the cancel to", "median", "longest", "times"])
    for name, values in (("its answer", answered), ("the engine is free", freed), ("the next picture is done", served)):
        table.row(name, milliseconds(statistics.median(values)), milliseconds(max(values)), str(len(values)))
    table.notes.append("the engine can't be interrupted: it is stopped, and started again for the next picture")
    return table


def _swaps(folder: Path, server: Path, toys: ToyModels, chosen: argparse.Namespace, rounds: int) -> Table:
    """A chat model and a picture model in memory for one of them."""
    engine, model = real_build(chosen.engine), real_model(chosen.model)
    document = _config(server, toys, host={"memory": "500MiB", "reserve": {"memory": "0B"}}, concessions=[])
    document["engines"]["llama.cpp"] = {"builds": [engine.as_config()]}
    launch = {"slots": 1, "ctx_size": 2048, "cache_ram": "256MiB"}  # so that there is room for one only
    chat = {"engine": "llama.cpp", "file": str(model), "serves": ["chat"], "launch": launch}
    document["models"]["chat"] = chat
    document["broker"] = {"eviction": {"min_idle": "1ms"}}
    times: dict[str, list[float]] = {"picture, a chat model goes for it": [], "chat, a picture model goes for it": []}
    with running_daemon(folder, document) as daemon:
        daemon.wait_until_known()
        body = {"model": "chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}
        daemon.ask("POST", "/v1/chat/completions", body)
        for _ in range(rounds):
            for name, path, sent in zip(
                times, ("/v1/images/generations", "/v1/chat/completions"), (_picture(128, 4), body), strict=True
            ):
                began = time.perf_counter()
                daemon.ask("POST", path, sent)
                times[name].append(time.perf_counter() - began)
    table = Table(
        "Chat and picture in turn, room for one, to the whole answer", ["request", "median", "longest", "swaps"]
    )
    for name, values in times.items():
        table.row(name, milliseconds(statistics.median(values)), milliseconds(max(values)), str(len(values)))
    return table


def _memory(server: Path, toys: ToyModels, sizes: tuple[int, ...], say: Progress) -> Table:
    """What a picture takes on top of the idle engine, against what is promised for it."""
    columns = ["picture", "idle", "taken by the picture", "promised", "taken of promised"]
    table = Table("Memory of a picture: anonymous bytes of the process, looked at each 5 ms", columns)
    for kind, parts in (("ovis", toys.ovis), ("klein", toys.klein)):
        paths = {role: Path(path) for role, path in parts.items()}
        metadata = read_parts(paths)
        for size in sizes:
            say(f"memory of {kind} at {size}")
            argv = [str(server)]
            for role, path in parts.items():
                argv += [f"--{role.replace('diffusion_model', 'diffusion-model')}", path]
            with _by_hand([*argv, "--lora-apply-mode", "at_runtime", "--seed", "-1"], watched := _Watched()) as port:
                idle = watched.now()
                with watched.peak() as peak:
                    _native(port, size, 1)
            wish = PictureWish("a cat", size, size, 1, 1.0, _SEED)
            promised = working_set(metadata, SdCppSettings(), wish)["host"]
            taken = max(peak) - idle
            cells = (mebibytes(idle), mebibytes(taken), mebibytes(promised), f"{taken / promised:.2f}")
            table.row(f"{kind}, {size} x {size}", *cells)
    return table


class _Watched:
    """The memory of a process."""

    pid = 0

    def now(self) -> int:
        """Anonymous bytes that it holds."""
        return own_bytes(self.pid)

    @contextmanager
    def peak(self) -> Iterator[list[int]]:
        """Looks at it all the time while the block runs."""
        seen, over = [self.now()], threading.Event()

        def watch() -> None:
            while not over.wait(0.005):
                seen.append(self.now())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield seen
        finally:
            over.set()
            watcher.join()


@contextmanager
def _by_hand(argv: list[str], watched: _Watched | None = None) -> Iterator[int]:
    """The server on a port of its own, ready."""
    port = free_port()
    words = list(argv)
    if "--listen-port" in words:
        words[words.index("--listen-port") + 1] = str(port)
    else:
        words += ["--listen-port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if watched is not None:
        watched.pid = process.pid
    try:
        _until(lambda: _asked(port, "GET", "/v1/models") is not None)
        yield port
    finally:
        stop_process(process)


def _native(port: int, size: int, steps: int) -> None:
    """One picture over the server's own jobs."""
    body = {
        "prompt": "a cat",
        "width": size,
        "height": size,
        "seed": _SEED,
        "sample_params": {"sample_steps": steps, "guidance": {"txt_cfg": 1}},
    }
    job = _asked(port, "POST", "/sdcpp/v1/img_gen", body)
    if job is None:
        raise BenchError("the engine takes no job")
    _until(lambda: (_asked(port, "GET", f"/sdcpp/v1/jobs/{job['id']}") or {}).get("status") == "completed")


def _by_route(port: int, size: int, steps: int) -> None:
    """One picture over the server's route of A1111's, which takes all that is said here, and answers with it."""
    body = {"prompt": "a cat", "width": size, "height": size, "seed": _SEED, "steps": steps, "cfg_scale": 1}
    if not (_asked(port, "POST", "/sdapi/v1/txt2img", body) or {}).get("images"):
        raise BenchError("the engine draws nothing over its route")


def _asked(port: int, method: str, path: str, body: Any = None) -> Any:
    """The JSON of an answer; None where there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def _until(done: Any) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise BenchError("it took too long")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
