"""The command `serve` up to the daemon itself, which a stand-in plays here."""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor.config.load import LoadedConfig
from supervisor.errors import ConfigError, ModelError
from tests.unit.cli.command import Ended, enginehouse


@dataclass(frozen=True, slots=True)
class _Options:
    """Takes what the real options take."""

    logger: Any
    redactor: Any
    env: Any
    on_listening: Any
    address: Any
    read: Any
    lines: Any


@dataclass
class FakeApp:
    """Stands in for `supervisor.app`: remembers what it was given, and ends as it is told."""

    ending: Callable[[], int] = lambda: 0
    given: list[tuple[LoadedConfig, _Options]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    closed: int = 0

    def close(self) -> None:
        """The address is let go."""
        self.closed += 1

    async def run_daemon(self, loaded: LoadedConfig, *, options: _Options) -> int:
        """Remember, say a line, end."""
        assert gc.isenabled()
        self.loops.append(type(asyncio.get_running_loop()).__module__)
        self.given.append((loaded, options))
        options.logger.warning("hello", api_key="hidden")
        return self.ending()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApp]:
    """The stand-in in the real one's place; the machine's own config files are out of the way."""
    fake = FakeApp()
    module = ModuleType("supervisor.app")
    module.__dict__.update(run_daemon=fake.run_daemon, DaemonOptions=_Options)
    monkeypatch.setitem(sys.modules, "supervisor.app", module)
    # The machine's own state folder and port are not for tests.
    monkeypatch.setattr("supervisor.cli.serve.open_address", lambda _config: fake)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("ENGINEHOUSE_CONFIG", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield fake
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def _raise(error: BaseException) -> Callable[[], int]:
    def ending() -> int:
        raise error

    return ending


def test_the_config_and_the_command_lines_address_reach_the_daemon(app: FakeApp, tmp_path: Path) -> None:
    """--host and --port change the address only; the rest is the file's."""
    path = tmp_path / "config.yaml"
    path.write_text(f"version: 1\nlisten: {{port: 9}}\nstate_dir: {tmp_path}/state\n")
    assert enginehouse("serve", "--config", str(path), "--host", "::1").code == 0
    assert enginehouse("serve", "--config", str(path), "--port", "0").code == 0
    (first, options), (second, _) = app.given
    assert (str(first.config.listen.host), first.config.listen.port, first.path) == ("::1", 9, path)
    assert (str(second.config.listen.host), second.config.listen.port) == ("127.0.0.1", 0)
    assert second.config.state_dir == tmp_path / "state"
    assert options.on_listening is None


def test_without_a_config_the_daemon_runs_on_defaults(app: FakeApp) -> None:
    """Zero config works, and the loop is uvloop where it installs."""
    pytest.importorskip("uvloop")
    assert enginehouse("serve").code == 0
    assert app.given[0][0].path is None
    assert app.given[0][1].address is app
    assert app.closed == 1
    assert app.loops == ["uvloop"]


def test_logs_go_to_stderr_only_and_without_secrets(app: FakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but documents goes to stdout; the environment chooses the form."""
    ended = enginehouse("serve")
    assert ended.out == ""
    assert '"event":"hello","api_key":"***"' in ended.err
    monkeypatch.setenv("ENGINEHOUSE_LOG", "console")
    assert "hello" in enginehouse("serve").err
    monkeypatch.setenv("ENGINEHOUSE_LOG", "loud")
    assert enginehouse("serve").code == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("state_dir_locked", "another daemon holds it"), 2, "enginehouse: another daemon holds it\n"),
        (ModelError("model_broken", "broken"), 1, "enginehouse: broken\n"),
        (ExceptionGroup("tasks", [ConfigError("address_unusable", "port in use")]), 2, "enginehouse: port in use\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_start_fails_is_one_line_and_a_code(app: FakeApp, error: BaseException, code: int, said: str) -> None:
    """Also when the error comes out of a task group, wrapped; Ctrl-C is quiet."""
    app.ending = _raise(error)
    ended = enginehouse("serve")
    assert ended.code == code
    assert _after_logs(ended) == said


def test_a_bug_is_not_dressed_up_as_an_answer(app: FakeApp) -> None:
    """An error that is not ours keeps its traceback, even next to one that is."""
    app.ending = _raise(ExceptionGroup("tasks", [ModelError("model_broken", "broken"), ZeroDivisionError()]))
    with pytest.raises(ExceptionGroup):
        enginehouse("serve")


def test_the_daemons_own_code_is_the_commands(app: FakeApp) -> None:
    """What `run_daemon` answers is the exit code."""
    app.ending = lambda: 1
    assert enginehouse("serve").code == 1


def _after_logs(ended: Ended) -> str:
    return "".join(line for line in ended.err.splitlines(keepends=True) if not line.startswith("{"))
