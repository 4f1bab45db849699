"""The command line: usage, exit codes, and how errors are said."""

import subprocess
import sys
from pathlib import Path

import pytest

import supervisor
from supervisor.cli.main import report
from supervisor.errors import ConfigError, ModelError
from tests.unit.cli.command import enginehouse


def test_the_version_is_one_line() -> None:
    """`--version` needs no config and no daemon."""
    assert enginehouse("--version").out == f"enginehouse {supervisor.__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        ["nope"],
        ["serve", "--port", "x"],
        ["serve", "--port", "70000"],
        ["plan"],
        ["models"],
        ["events", "--limit", "0"],
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(args: list[str]) -> None:
    """Scripts can tell a wrong call from the answer no; nothing of it goes to stdout's JSON."""
    ended = enginehouse(*args)
    assert ended.code == 2
    assert "Usage: enginehouse" in ended.out + ended.err
    assert "Traceback" not in ended.err


def test_every_command_of_the_table_is_there() -> None:
    """The names are what people script against."""
    text = enginehouse("--help").out
    for name in ("serve", "check", "probe", "plan", "demo", "models", "builds", "status", "events"):
        assert f"  {name} " in text


def test_a_missing_config_exits_2_without_a_traceback(tmp_path: Path) -> None:
    """The config is part of the call: it is named, and nothing was started."""
    ended = enginehouse("serve", "--config", str(tmp_path / "none.yaml"))
    assert ended.code == 2
    assert ended.err.startswith("enginehouse: there is no config file")
    assert "Traceback" not in ended.err


def test_an_open_address_on_the_command_line_needs_tokens_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--host 0.0.0.0` is no way around the rule that the config is held to."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ended = enginehouse("serve", "--host", "0.0.0.0")
    assert ended.code == 2
    assert "token" in ended.err


def test_each_error_is_said_once_and_a_config_error_decides_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Two tasks that fail for one reason give one line."""
    no = ModelError("model_not_found", "no such model")
    assert report([no, no]) == 1
    assert report([no, ConfigError("config_invalid", "bad key")]) == 2
    assert capsys.readouterr().err == "enginehouse: no such model\n" * 2 + "enginehouse: bad key\n"


def test_probe_prints_one_document_in_a_pipe_and_tables_on_a_terminal() -> None:
    """The form follows the reader; --json decides otherwise."""
    piped, asked = enginehouse("probe"), enginehouse("probe", "--json", on_terminal=True)
    assert piped.code == asked.code == 0
    assert piped.out.startswith("{")
    assert asked.out.startswith("{")
    assert "CPU" in enginehouse("probe", on_terminal=True).out


def test_the_way_to_listening_imports_nothing_heavy() -> None:
    """Regression guard for the start's 0.8 s: rich, Prometheus and the command's HTTP client stay out."""
    code = (
        "import sys, supervisor.cli.main, supervisor.cli.serve\n"
        "supervisor.cli.main.build_app()\n"
        "heavy = {'rich', 'prometheus_client', 'watchfiles', 'hypothesis', 'gguf', 'numpy'}\n"
        "found = sorted(heavy & {name.partition('.')[0] for name in sys.modules})\n"
        "assert not found, found\n"
        "assert 'supervisor.cli.client' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_real_process_has_the_same_exit_codes(tmp_path: Path) -> None:
    """`python -m supervisor` is the same program."""
    command = [sys.executable, "-m", "supervisor", "serve", "--config", str(tmp_path / "none.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("enginehouse: there is no config file")
