"""Starts the server: ``PYTHON /path/to/engines/mlx/server/run.py --model FOLDER …``.

The interpreter may be one of another environment, in which Enginehouse is not installed: this file finds the package
``engines`` by its own place, and puts nothing else on the path. It also sets what must be set before libraries load.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

_ENGINES = Path(__file__).resolve().parents[2]


def _make_importable() -> None:
    """Only the package ``engines``, from beside this file, whatever else is called so."""
    spec = importlib.util.spec_from_file_location(
        "engines", _ENGINES / "__init__.py", submodule_search_locations=[str(_ENGINES)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {_ENGINES}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["engines"] = module
    spec.loader.exec_module(module)
    # A script's folder is put first on the path: its modules would hide others of the same name.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != here]


def _set_environment() -> None:
    """Nothing is fetched, and compiled kernels lie where nobody else can put any: they are loaded as libraries."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    private = _private_folder()
    home, temporary = private / "hf", private / "tmp"
    for folder in (private, home / "hub", temporary):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise PermissionError(1, "this folder for compiled kernels is another user's", str(private))
    private.chmod(0o700)
    os.environ["HF_HOME"] = str(home)
    os.environ["TMPDIR"] = str(temporary)
    # Its threads wait for each other in busy loops: beside other work on two cores a product (16 rows, 768 by 768) took
    # 36 ms with two, and 0.4 with one; alone 0.26 and 0.35.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    tempfile.tempdir = None


def _private_folder() -> Path:
    """Beside the socket, which lies in a folder of its user alone; kernels that lie there are used again."""
    if chosen := os.environ.get("ENGINEHOUSE_MLX_SCRATCH"):
        return Path(chosen)
    place = next((word for before, word in pairwise(sys.argv) if before == "--host"), "")
    if place.endswith(".sock"):
        return Path(place).absolute().parent / "mlx"
    return Path(tempfile.gettempdir()) / f"mlx-{os.getuid()}"


if __name__ == "__main__":
    _make_importable()
    _set_environment()
    from engines.mlx.server.main import main

    sys.exit(main(sys.argv[1:]))
