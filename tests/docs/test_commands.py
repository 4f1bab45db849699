"""The commands of the README, run as a new user would: in its order, in one folder, against a daemon that answers."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.support.sockets import free_port
from tests.wire.asking import ask

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# What can't be run here, each with who runs it instead.
ELSEWHERE = {
    "make run": "tests of `enginehouse demo`, and whoever clones it",
    "make test": "this is it",
    "docker ": "tests/containers, with Podman",
}
OLLAMA = "OLLAMA_HOST"
_PAGE_ADDRESS = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Block:
    """Text to run: ``kind`` is ``sh`` or ``python``."""

    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Indented blocks are shell; fenced ones say what they are; others aren't run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"(?m)^```(\w*)\n([\s\S]*?)^```|((?:^    \S.*\n(?:^      .*\n)*)+)", text):
        if match[3]:
            found.append(Block("sh", re.sub(r"(?m)^    ", "", match[3])))
        elif match[1] in {"python", "sh", "bash", "yaml"}:
            found.append(Block({"bash": "sh"}.get(match[1], match[1]), match[2]))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user stands: an empty folder, with the README's own config in it."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "tokens").mkdir()
    [config, *_] = [block.text for block in blocks(README) if block.kind == "yaml"]
    models = folder / "models"
    models.mkdir()
    (folder / "config.yaml").write_text(config.replace("/models", str(models)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, demo_engine: DemoEngine, demo_model: Path) -> Iterator[Daemon]:
    """What `make run` serves: the small real model, as `demo`."""
    model = {"file": str(demo_model), "serves": ["chat", "embeddings"], "launch": {"ctx_size": 256, "slots": 1}}
    config = daemon_config(demo_engine.as_config(), models={"demo": {**model, "keep_alive": "never"}})
    with running_daemon_sync(tmp_path_factory.mktemp("demo"), config) as daemon:
        daemon.wait_for_event("build_found")
        assert (
            ask(daemon, "/admin/v1/models/demo/load", b"").status == 200
        )  # before the test, whose leftover it would be
        yield daemon


def environment(home: Path, daemon: Daemon) -> dict[str, str]:
    """A user's, with the commands of this installation on PATH."""
    bin_folder = str(Path(sys.executable).parent)
    return {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "ENGINEHOUSE_URL": daemon.base_url,
        "TERM": "dumb",
    }


def run(argv: list[str], home: Path, daemon: Daemon) -> str:
    """What it wrote.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        argv, cwd=home, env=environment(home, daemon), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{argv[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "whole"])
def test_the_commands_of_the_readme_work(whole: bool, home: Path, demo: Daemon, demo_model: Path) -> None:
    """Shell lines each on their own, Python blocks whole, by the address of a daemon that serves the demo model.

    An SDK's import takes many times what its answer does: in the quick run this process's own is used, and Ollama's
    client is left to the other.
    """
    shutil.copy(demo_model, home / "models" / "qwen3-8b-q4_k_m.gguf")
    ran: list[str] = []
    for block in blocks(README):
        text = block.text.replace(_PAGE_ADDRESS, demo.base_url.removeprefix("http://"))
        if block.kind == "python":
            assert (run([sys.executable, "-c", text], home, demo) if whole else here(text)).strip(), text
            ran.append("python")
        elif block.kind == "sh":
            for line in re.sub(r"\\\n\s*", "", text).splitlines():
                if whole or not line.startswith(OLLAMA):
                    ran += _shell(line, home, demo)
    assert ran.count("python") >= 2
    expected = ["enginehouse check", "enginehouse plan", "enginehouse status", "openssl", "curl"]
    for command in [*expected, OLLAMA] if whole else expected:
        assert any(command in line for line in ran), command


def here(text: str) -> str:
    """What a block writes that is run in this process; its client is closed afterwards."""
    names: dict[str, Any] = {}
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(text, "README.md", "exec"), names)  # the project's own text
    for value in names.values():
        if not isinstance(value, type) and hasattr(value, "close"):
            value.close()
    return written.getvalue()


def _shell(line: str, home: Path, demo: Daemon) -> list[str]:
    """The line, if it was run; a daemon of one's own is started, looked for, and ended."""
    if any(line.startswith(start) for start in ELSEWHERE):
        return []
    command = line.partition("  #")[0].strip()
    if command.startswith("enginehouse serve"):
        _serve(f"{command} --port {free_port()}", home, demo)
    elif "curl" in command:
        assert '"content"' in run(["bash", "-ec", command], home, demo)
    else:
        run(["bash", "-ec", command], home, demo)
    return [command]


def _serve(command: str, home: Path, demo: Daemon) -> None:
    env = {**environment(home, demo), "ENGINEHOUSE_LOG": "json"}
    with subprocess.Popen(["bash", "-ec", f"exec {command}"], cwd=home, env=env, stderr=subprocess.PIPE) as serving:
        assert serving.stderr is not None
        try:
            assert any(b"daemon_listening" in row for row in serving.stderr), command
        finally:
            serving.terminate()
            serving.stderr.read()
    assert serving.returncode == 0


@pytest.mark.parametrize("page", ["README.md", "docs/containers.md", "deploy/systemd/enginehouse.service"])
def test_files_that_are_named_are_there(page: str) -> None:
    """Also in commands that are run elsewhere: build targets, manifests, units."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in set(re.findall(r"\bdeploy/[\w./-]+\w", text)) - {"deploy/image/prebuilt/sd-server"}:
        assert (ROOT / name).exists(), name
    stages = set(re.findall(r"(?m)^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert set(re.findall(r"--target (\w+)", text)) <= stages
    arguments = set(re.findall(r"(?m)^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert set(re.findall(r"--build-arg (\w+)=", text)) <= arguments


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_clone_is_installed_with_pipx_and_answers(tmp_path: Path, demo_model: Path) -> None:
    """`pipx install '.[demo]' && enginehouse demo`, from the tracked files alone."""
    clone = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = clone / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    subprocess.run([str(tools / "bin" / "pip"), "install", "--quiet", "pipx"], check=True)
    env = {
        **os.environ,
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "HOME": str(tmp_path),
    }
    subprocess.run([str(tools / "bin" / "pipx"), "install", ".[demo]"], cwd=clone, env=env, check=True)
    command = tmp_path / "bin" / "enginehouse"
    fetched = subprocess.run(
        [str(command), "demo", "--fetch-only"], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(fetched).read_bytes() == demo_model.read_bytes()
    # The page's files must be in the wheel, not only in the tree.
    installed = next((tmp_path / "pipx").rglob("supervisor/gateway/status_page"))
    assert (installed / "app.js").is_file()
    assert (installed / "index.html").is_file()
