"""What the MLX server does when it can't serve."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mlx_server import RUN, running_mlx_server
from tests.support.sockets import short_socket_folder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def _unknown(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nosucharch"}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without_weights, "No safetensors found"),
        (_cut_short, "load_safetensors"),
        (_unknown, "Model type nosucharch not supported"),
        (shutil.rmtree, "no config.json"),
    ],
)
def test_models_that_do_not_load(damage: Callable[[Path], None], said: str, mlx_models: Path, tmp_path: Path) -> None:
    """Prevents: a server without a model stayed up. It says why in one line, and ends with a code of its own."""
    folder = tmp_path / "model"
    shutil.copytree(mlx_models / "llama", folder)
    damage(folder)
    with running_mlx_server(folder, ready=False) as server:
        assert server.process.wait(90) == 10
    assert said in next(line for line in server.lines if "died: " in line)


def test_address_in_use(mlx_models: Path, tmp_path: Path) -> None:
    """Prevents: a second server stayed up without an address."""
    with short_socket_folder() as folder, socket.socket(socket.AF_UNIX) as holder:
        path = folder / "x.sock"
        holder.bind(str(path))
        holder.listen()
        command = [sys.executable, str(RUN), "--model", str(mlx_models / "llama"), "--host", str(path)]
        env = {"HOME": str(tmp_path), "ENGINEHOUSE_MLX_SCRATCH": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, env=env, text=True, check=False, timeout=60)
    assert done.returncode == 12
    assert "Error: [Errno 98]" in done.stderr


@pytest.mark.parametrize(("args", "code"), [(["--no-such"], 2), ([], 2), (["--model", "x", "--parallel", "0"], 2)])
def test_wrong_arguments(args: list[str], code: int, mlx_here: None, tmp_path: Path) -> None:
    """A line that can't be parsed ends with 2 at once."""
    env = {"HOME": str(tmp_path), "ENGINEHOUSE_MLX_SCRATCH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(RUN), *args], capture_output=True, env=env, check=False, timeout=60)
    assert done.returncode == code
    assert b"error: " in done.stderr


def test_health_while_loading(mlx_models: Path) -> None:
    """The socket is there before the model, and says so with 503."""
    with running_mlx_server(mlx_models / "llama", ready=False) as server:
        server.wait_for_line("listening on")
        answer = server.ask("/health")
        # On a fast machine the model may be there already.
        assert answer.status in {200, 503}
        if answer.status == 503:
            assert answer.json["error"]["message"] == "Loading model"
            assert server.complete("x").status == 503
        server.wait_for_line("model loaded")
        assert server.ask("/health").status == 200


def test_an_engine_that_breaks_ends_the_server(mlx_models: Path, tmp_path: Path) -> None:
    """Prevents: the thread died, every request failed, and the process stayed up for nobody to replace."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys, runpy\n"
        "from mlx_lm.generate import BatchGenerator\n"
        "def fail(self): raise RuntimeError('no more memory')\n"
        "BatchGenerator.next = fail\n"
        f"sys.argv[0] = {str(RUN)!r}\n"
        f"runpy.run_path({str(RUN)!r}, run_name='__main__')\n"
    )
    with running_mlx_server(mlx_models / "llama", program=broken) as server:
        answer = server.complete("One two")
        assert answer.status == 503
        assert "no more memory" in answer.json["error"]["message"]
        assert server.process.wait(20) == 11
    assert any("died: RuntimeError: no more memory" in line for line in server.lines)
