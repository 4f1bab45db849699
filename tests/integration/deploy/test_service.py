"""The unit under a real systemd: its own user manager, in namespaces and a control group of the test's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.daemon import daemon_config
from tests.support.fake_engine import fake_build, tiny_model
from tests.support.sockets import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
MANAGER = Path("/lib/systemd/systemd")
GROUPS = tuple(path for name in ("systemd", "unified", ".") if (path := Path("/sys/fs/cgroup") / name).is_dir())
# Of a system's manager: a user's has no users to choose from; and what a container's /proc does not allow.
NOT_HERE = ("User", "Group", "SupplementaryGroups", "ProtectKernelLogs", "ProtectKernelTunables", "LimitMEMLOCK")
# Each step prints what a test looks at. `systemctl start` and `reload` return when the daemon has told.
STEPS = """
set -u
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/0 /run/home/.config/systemd/user
export XDG_RUNTIME_DIR=/run/user/0 HOME=/run/home XDG_CONFIG_HOME=/run/home/.config
unset DBUS_SESSION_BUS_ADDRESS
cp "$1" /run/home/.config/systemd/user/
$2 --user >/dev/null 2>&1 &
for turn in $(seq 100); do [ -S /run/user/0/systemd/private ] && break; sleep 0.1; done
say() { timeout 60 systemctl --user "$@"; }
show() { echo "$1: $(say show enginehouse -p "$2" --value)"; }
is() { [ "$(say show enginehouse -p "$1" --value)" = "$2" ]; }
until_it_is() { for turn in $(seq 300); do is "$1" "$2" && break; sleep 0.1; done; }
say show -p Version >/dev/null || { echo "manager: none"; exit 0; }
say start enginehouse; echo "start: $?"
show began StatusText
pid=$(say show enginehouse -p MainPID --value)
say reload enginehouse; echo "reload: $?"
show after-reload SubState
if [ "${pid:-0}" -gt 1 ]; then grep -E "^(Seccomp|NoNewPrivs|CapEff):" /proc/$pid/status; kill -STOP "$pid"; fi
until_it_is NRestarts 1
show restarts NRestarts
until_it_is SubState running
show again StatusText
say stop enginehouse; echo "stop: $?"
show ended Result
timeout 10 systemctl --user exit
"""


@contextmanager
def group_of_its_own() -> Iterator[str]:
    """A folder in each hierarchy of systemd's; the command's beginning that moves a shell into them."""
    made = []
    try:
        for hierarchy in GROUPS[:2]:
            folder = hierarchy / f"eh-test-{os.getpid()}"
            folder.mkdir()
            made.append(folder)
        yield "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in made)
    finally:
        for folder in made:
            for path in sorted((one for one in folder.rglob("*") if one.is_dir()), reverse=True):
                path.rmdir()
            folder.rmdir()


def unit(folder: Path) -> Path:
    """The project's, with this installation and a config of a test; the watchdog is quick."""
    config = daemon_config(fake_build(folder), models={"tiny": {"file": str(tiny_model(folder))}})
    config["listen"] = {"host": "127.0.0.1", "port": free_port()}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    text = (ROOT / "deploy" / "systemd" / "enginehouse.service").read_text(encoding="utf-8")
    start = f"{sys.executable} -m supervisor serve --config {folder / 'config.yaml'}"
    text = re.sub(r"(?m)^ExecStart=.*$", f"ExecStart={start}\nBindReadOnlyPaths={folder} {ROOT}", text)
    text = re.sub(r"(?m)^WatchdogSec=.*$", f"WatchdogSec=4s\nWorkingDirectory={ROOT}", text)
    text = re.sub(r"XDG_STATE_HOME=\S+", "XDG_STATE_HOME=/run/home/state", text)
    text = re.sub(r"XDG_DATA_HOME=\S+", "XDG_DATA_HOME=/run/home/share", text)
    text = re.sub(r"XDG_RUNTIME_DIR=\S+", "XDG_RUNTIME_DIR=/run/user/0", text)
    text = re.sub(rf"(?m)^({'|'.join(NOT_HERE)})=.*\n", "", text)
    path = folder / "enginehouse.service"
    path.write_text(text, encoding="utf-8")
    return path


def test_systemd_starts_reloads_watches_and_stops_it(tmp_path: Path) -> None:
    """It is started when it says so, sandboxed; one that stands still is ended and started again; a stop is clean."""
    if os.geteuid() != 0 or not MANAGER.exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, systemd and unshare")
    script = tmp_path / "steps.sh"
    script.write_text(STEPS, encoding="utf-8")
    alone = "exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc"
    with group_of_its_own() as moved:
        command = f"{moved}{alone} bash {script} {unit(tmp_path)} {MANAGER}"
        process = subprocess.Popen(
            ["bash", "-c", command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
        )
        try:
            said, _ = process.communicate(timeout=150)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if "manager: none" in said:
        pytest.skip("systemd can't run here")
    told = dict(line.partition(":")[::2] for line in said.splitlines() if ":" in line)
    assert {key: value.strip() for key, value in told.items()} | {"began": "", "again": ""} == {
        "start": "0",
        "began": "",
        "reload": "0",
        "after-reload": "running",
        "Seccomp": "2",
        "NoNewPrivs": "1",
        "CapEff": "0000000000000000",
        "restarts": "1",
        "again": "",
        "stop": "0",
        "ended": "success",
    }, said
    assert "Listening at" in told["began"]
    assert "Listening at" in told["again"]
