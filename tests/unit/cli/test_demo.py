"""The command `demo`: what is missing is said first; the config is the owner's, with one model more."""

import contextlib
import io
from pathlib import Path
from typing import Literal

import pytest

from engines.contract import Capability, EngineKind
from supervisor.builds.catalog import Candidate
from supervisor.cli.demo import Machine, show_panel, why_no_engine, with_demo_model
from supervisor.config.load import LoadedConfig, load_config
from tests.unit.cli.command import Terminal, enginehouse
from tests.unit.cli.wheels import pip_settings

_PC = Machine("Linux", "x86_64", avx2=True)


def _build(source: Literal["config", "path", "package"], problem: str | None = None) -> Candidate:
    return Candidate(
        name="b", engine=EngineKind.LLAMA_CPP, executable=Path("/x"), env={}, source=source, problem=problem
    )


@pytest.mark.parametrize("source", ["config", "path"])
def test_an_executable_of_ones_own_is_enough_anywhere(source: Literal["config", "path"]) -> None:
    """Any machine can run the demo with its own llama-server."""
    assert why_no_engine([_build(source)], Machine("Darwin", "arm64", avx2=None)) is None


def test_the_packaged_executable_needs_avx2() -> None:
    """It would die with an illegal instruction; where nobody knows, it is tried."""
    packaged = [_build("package")]
    assert why_no_engine(packaged, _PC) is None
    assert why_no_engine(packaged, Machine("Linux", "x86_64", avx2=None)) is None
    said = why_no_engine(packaged, Machine("Linux", "x86_64", avx2=False))
    assert said is not None
    assert "needs a CPU with AVX2" in said
    assert "`llama-server` on PATH" in said


def test_without_an_executable_it_says_how_to_get_one_here() -> None:
    """The extra is offered where it exists, and only there; a configured file that isn't there is none."""
    on_pc = why_no_engine([_build("config", "there is no such file")], _PC)
    assert on_pc is not None
    assert "pip install 'enginehouse[demo]'" in on_pc
    on_mac = why_no_engine([], Machine("Darwin", "arm64", avx2=None))
    assert on_mac is not None
    assert "Linux on x86-64 only; this is Darwin on arm64" in on_mac
    assert "pip install" not in on_mac


@pytest.mark.parametrize(
    ("text", "avx2"),
    [("flags\t\t: fpu avx avx2\nflags : avx2\n", True), ("flags : fpu avx\n", False), ("Features : neon\n", None)],
)
def test_the_machines_flags_are_read_from_cpuinfo(tmp_path: Path, text: str, avx2: bool | None) -> None:
    """All processors must have it; a file without flags (or none) says nothing."""
    (tmp_path / "cpuinfo").write_text(text)
    assert Machine.here(tmp_path / "cpuinfo").avx2 is avx2
    assert Machine.here(tmp_path / "nothing").avx2 is None


def test_the_demo_model_joins_the_owners_config(tmp_path: Path) -> None:
    """Everything else stays as it is; nothing is written, and a reload can't lose the model."""
    path = tmp_path / "config.yaml"
    path.write_text(f"version: 1\ndata_dir: {tmp_path}/data\nlisten: {{port: 9}}\nmodels: {{mine: {{file: x.gguf}}}}\n")
    demo = with_demo_model(load_config(path, {}), tmp_path / "Fake.Q4_1.gguf")
    assert list(demo.config.models) == ["demo", "mine"]
    added = demo.config.models["demo"]
    assert (added.file, added.aliases) == (tmp_path / "Fake.Q4_1.gguf", ("Fake.Q4_1",))
    assert added.serves == (Capability.CHAT, Capability.EMBEDDINGS)
    assert type(added.launch) is type(demo.config.models["mine"].launch)
    assert (demo.config.listen.port, demo.config.data_dir, demo.path) == (9, tmp_path / "data", None)


def test_an_alias_that_is_taken_is_left_to_its_owner(tmp_path: Path) -> None:
    """Two models never answer to one name."""
    path = tmp_path / "config.yaml"
    path.write_text("version: 1\nmodels: {mine: {file: x.gguf, aliases: [Fake]}}\n")
    demo = with_demo_model(load_config(path, {}), tmp_path / "Fake.gguf")
    assert demo.config.models["demo"].aliases == ()


def test_without_a_config_the_usual_folders_hold() -> None:
    """state_dir and data_dir follow the environment, as for `serve`."""
    loaded = load_config(None, {"HOME": "/home/x", "XDG_DATA_HOME": "/big"})
    demo = with_demo_model(loaded, Path("/big/enginehouse/m.gguf"))
    assert demo.config.data_dir == Path("/big/enginehouse")
    assert isinstance(demo, LoadedConfig)


def test_offline_ends_with_a_sentence_and_exit_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command, with pip told that there is no index: no traceback."""
    for name, value in {**pip_settings(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ended = enginehouse("demo", "--fetch-only")
    assert (ended.code, ended.out) == (1, "")
    assert "the demo model could not be fetched" in ended.err
    assert "Traceback" not in ended.err


def test_without_an_engine_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """93 MB are not fetched for a machine that couldn't run them."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"version: 1\ndata_dir: {tmp_path}/data\n"
        "engines: {llama.cpp: {builds: [{name: gone, executable: /nowhere/llama-server}]}}\n"
    )
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    ended = enginehouse("demo", "--config", str(config))
    assert ended.code == 1
    assert "no llama-server is installed" in ended.err
    assert not (tmp_path / "data").exists()


def test_the_panel_is_drawn_on_a_terminal_and_plain_in_a_pipe() -> None:
    """`make run` in a CI log stays readable."""
    status = {"address": "http://127.0.0.1:8080", "models": [{"id": "demo", "serves": ["chat"]}], "builds": []}
    pipe, terminal = io.StringIO(), Terminal()
    with contextlib.redirect_stdout(pipe):
        show_panel(status)
    with contextlib.redirect_stdout(terminal):
        show_panel(status)
    assert pipe.getvalue().startswith("Enginehouse\n  address  http://127.0.0.1:8080\n")
    assert "─" in terminal.getvalue()
