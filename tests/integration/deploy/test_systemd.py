"""The unit file, as systemd itself reads it."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config.sections import ShutdownConfig
from supervisor.units import parse_duration

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "enginehouse.service"


def unit() -> configparser.ConfigParser:
    """The file; of keys that stand there several times only the last counts here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read(UNIT, encoding="utf-8")
    return parser


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Every name and value is one that systemd knows, and the exposure that it computes is low."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here: apt install systemd")
    copy = tmp_path / "enginehouse.service"
    text = UNIT.read_text(encoding="utf-8")
    # Verified as it is, but for a program that is there on this machine.
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text), encoding="utf-8")
    found = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    safe = [analyze, "security", "--offline=true", "--threshold=30", str(copy)]
    assert subprocess.run(safe, capture_output=True, check=False).returncode == 0


def test_the_unit_leaves_the_daemon_time_to_stop() -> None:
    """Ended before `shutdown.total`, engines would be killed with their requests; and it is watched and told."""
    service = unit()["Service"]
    assert parse_duration(service["TimeoutStopSec"]) > ShutdownConfig().total
    assert service["Type"] == "notify"
    assert parse_duration(service["WatchdogSec"]) >= 10
    assert "HUP" in service["ExecReload"]
    assert service.get("PrivateDevices", "no") == "no", "cards would be hidden"
    assert "MemoryDenyWriteExecute" not in service, "GPU drivers compile"
