"""A llama-server that computes nothing: a real program for tests, with faults on demand.

Run as ``python -S -m tests.fakes.engine --model FILE --host PATH.sock`` with the repository on ``PYTHONPATH``; tests
get an executable of it from ``tests.support.fake_engine.fake_build``. It takes llama-server's arguments, speaks its
HTTP in its own shapes (recorded from b10068), logs in its form, and misbehaves as ``engine_parts.faults.Faults`` says.
SIGUSR1 makes it hang, SIGUSR2 lets it go on.

What it copies from the real one because callers depend on it:

* everything is 503 while it loads;
* a connection closes at an error, after 5 idle seconds, and at the end of a stream, whose header says Keep-Alive;
* a client that left is noticed between batches only with ``return_progress``, and in decode only in a stream;
* SIGTERM freezes open streams and waits for their clients to leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time

from tests.fakes.engine_parts import options as arguments
from tests.fakes.engine_parts.faults import FaultError, Faults, read_faults
from tests.fakes.engine_parts.log import Log
from tests.fakes.engine_parts.options import ArgumentsError, Options
from tests.fakes.engine_parts.server import Server

# A grandchild or a hung probe that no test cleans up ends by itself.
_LONGEST_LEFTOVER = 60
_LOAD_STEP = 0.1


def main() -> None:
    """Parse, misbehave where asked, serve."""
    argv = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = Log()
    try:
        options = arguments.parse(argv)
        faults = read_faults(os.environ, options.faults, None if options.command else options.model)
    except (ArgumentsError, FaultError) as error:
        log.raw(str(error))
        raise SystemExit(1 if isinstance(error, ArgumentsError) else 99) from None
    old = faults.help == "old"
    wrong = arguments.refused(argv, old=old) if faults.strict else None
    if wrong is not None:
        log.raw(f"error: invalid argument: {wrong}")
        raise SystemExit(1)
    if faults.die == "exec":
        _die_unstarted(options, faults, log)
    if options.command is not None:
        raise SystemExit(_short_command(options.command, faults))
    raise SystemExit(asyncio.run(_serve(options, faults, log)))


def _die_unstarted(options: Options, faults: Faults, log: Log) -> None:
    """As a build that this machine can't run: before it has read anything."""
    if faults.replay is not None:
        _replay(faults.replay, log)
    Server(options, faults, log).die("exec")


def _short_command(command: str, faults: Faults) -> int:
    """``--version``, ``--help`` and ``--list-devices``; the version goes to stderr, as in the real one."""
    if faults.probe_hang:
        time.sleep(_LONGEST_LEFTOVER)
    if command == "version":
        sys.stderr.write(f"version: {faults.version}\nbuilt with GNU 11.4.0 for Linux x86_64\n")
    elif command == "help" and faults.help != "empty":
        sys.stdout.write(arguments.help_text(old=faults.help == "old"))
    elif command == "devices":
        sys.stdout.write("Available devices:\n" + "".join(f"  {row}\n" for row in faults.devices))
    sys.stdout.flush()
    return faults.probe_exit


async def _serve(options: Options, faults: Faults, log: Log) -> int:
    log.say(
        "common_params", "common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)", subsystem="cmn"
    )
    if faults.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = Server(options, faults, log)
    if faults.replay is not None:
        _replay(faults.replay, log)
        os._exit(faults.exit if faults.exit is not None else 1) if faults.signal is None else None
        os.kill(os.getpid(), faults.signal_number())
    server.die("start")
    listening = _bind(options, log)
    if listening is None:
        log.say("operator()", "operator(): cleaning up before exit...")
        log.say("llama_server", "exiting due to HTTP server error", level="E")
        return 1
    if options.host.endswith(".sock"):
        http = await asyncio.start_unix_server(server.connection, sock=listening)
    else:
        http = await asyncio.start_server(server.connection, sock=listening)
    async with http:
        return await _load_and_run(options, faults, log, server, http)


async def _load_and_run(
    options: Options, faults: Faults, log: Log, server: Server, http: asyncio.AbstractServer
) -> int:
    loop = asyncio.get_running_loop()
    held = bytearray(b"\x01") * (faults.memory_mib << 20)
    log.say("load_model", f"loading model '{options.model}'")
    if not _model_is_there(options, log):
        return 1
    _leave_grandchild(faults, log)
    for line in faults.says:
        log.raw(line)
    await _load(faults, log, server)
    stop = asyncio.Event()
    _handle_signals(loop, faults, stop, server)
    unified = str(options.kv_unified).lower()
    said = f"n_slots = {options.parallel}, n_ctx_slot = {options.slot_context}, kv_unified = '{unified}'"
    log.say("load_model", f"initializing, {said}")
    for number in range(faults.log_flood):
        log.say("flood", f"line {number} {'x' * 160}")
    server.ready = True
    log.say("llama_server", "model loaded")
    scheme = "unix" if options.host.endswith(".sock") else "http"
    where = options.host if scheme == "unix" else f"{options.host}:{options.port}"
    log.say("llama_server", f"listening on {scheme}://{where}")
    server.hang("ready")
    if faults.die == "ready":
        await asyncio.sleep(_LOAD_STEP)
        server.die("ready")
    await stop.wait()
    server.die("stop")
    log.say("operator()", "operator(): cleaning up before exit...")
    server.stopping = True
    http.close()
    while not server.client_left_everywhere():  # noqa: ASYNC110  a client that leaves sets no event
        await asyncio.sleep(0.02)
    server.close_all()
    del held
    return 0


async def _load(faults: Faults, log: Log, server: Server) -> None:
    end = time.monotonic() + faults.load_seconds
    step = 0
    while (rest := end - time.monotonic()) > 0 or faults.hang == "load":
        if faults.load_log and step:
            log.say("load_tensors", f"loading layer {step}", subsystem="")
        step += 1
        await asyncio.sleep(min(_LOAD_STEP, rest) if rest > 0 else _LOAD_STEP)
        server.hang("load")
    server.die("load")


def _handle_signals(loop: asyncio.AbstractEventLoop, faults: Faults, stop: asyncio.Event, server: Server) -> None:
    def asked_to_stop() -> None:
        if stop.is_set():
            os.write(2, b"Received second interrupt, terminating immediately.\n")
            os._exit(1)
        stop.set()

    if not faults.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, asked_to_stop)
    loop.add_signal_handler(signal.SIGINT, asked_to_stop)
    loop.add_signal_handler(signal.SIGUSR1, server.answering.clear)
    loop.add_signal_handler(signal.SIGUSR2, server.answering.set)


def _bind(options: Options, log: Log) -> socket.socket | None:
    """The listening socket; like the real one it does not remove a stale socket file."""
    unix = options.host.endswith(".sock")
    sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if not unix:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(options.host if unix else (options.host, options.port))
    except OSError:
        sock.close()
        said = f"couldn't bind HTTP server socket, hostname: {options.host}, port: {options.port}"
        log.say("start", said, level="E")
        return None
    sock.setblocking(False)  # noqa: FBT003  a positional-only argument
    return sock


def _model_is_there(options: Options, log: Log) -> bool:
    model = options.model or ""
    try:
        with open(model, "rb") as stream:  # noqa: PTH123  pathlib would cost a tenth of the start
            magic = stream.read(4)
        why = None if magic == b"GGUF" else f"invalid magic characters: '{magic.decode('latin-1')}', expected 'GGUF'"
    except OSError as error:
        why = f"failed to open GGUF file '{model}' ({error.strerror})"
    if why is None:
        return True
    log.plain(f"gguf_init_from_file: {why}")
    log.plain(f"llama_model_load: error loading model: llama_model_loader: failed to load model from {model}")
    log.plain("llama_model_load_from_file_impl: failed to load model")
    log.say("common_init_", f"failed to load model '{model}'", level="E", subsystem="cmn")
    log.say("load_model", f"failed to load model, '{model}'", level="E")
    log.say("operator()", "operator(): cleaning up before exit...")
    log.say("llama_server", "exiting due to model loading error", level="E")
    return False


def _leave_grandchild(faults: Faults, log: Log) -> None:
    """A process that holds on to this one's output, and in a session of its own escapes a kill of the group."""
    if faults.grandchild is None:
        return
    if faults.grandchild not in {"group", "session"}:
        raise SystemExit(f"no such grandchild: {faults.grandchild}")
    apart = faults.grandchild == "session"
    child = subprocess.Popen(["sleep", str(_LONGEST_LEFTOVER)], start_new_session=apart)
    child.returncode = 0  # nobody waits for it: no warning about that at exit
    log.say("grandchild", f"pid {child.pid}")


def _replay(path: str, log: Log) -> None:
    with open(path, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123  no pathlib here
        for line in stream:
            log.raw(line.rstrip("\n"))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
