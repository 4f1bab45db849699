"""A real, pure version 2 hierarchy: on a kernel of its own, as a process (User Mode Linux), over this machine's files.

Slow, and only where ``linux.uml`` is on ``PATH`` or named by ``ENGINEHOUSE_UML`` (Debian: user-mode-linux). It has one
CPU. This machine's file system is seen read-only; only the test's own folder is written to.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import daemon_config
from tests.support.fake_engine import fake_build, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]
_LONGEST = 240
_MIB = 2**20
_INIT = """#!/bin/bash
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin LANG=C.UTF-8
mount -t proc proc /proc; mount -t sysfs sysfs /sys
mount -t hostfs none {folder} -o {folder}
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
G=/sys/fs/cgroup
echo "+cpu +memory" > $G/cgroup.subtree_control
mkdir -p $G/outer; echo "+cpu +memory" > $G/outer/cgroup.subtree_control; mkdir $G/outer/inner
echo {memory} > $G/outer/memory.max
echo "50000 100000" > $G/outer/inner/cpu.max
export HOME={folder} TMPDIR={folder} PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1
(echo $BASHPID > $G/outer/inner/cgroup.procs; cd {folder}; {command}) > {folder}/out 2> {folder}/err
cp $G/outer/inner/cpu.stat {folder}/stat
echo o > /proc/sysrq-trigger; sleep 60
"""


@pytest.fixture(scope="module")
def kernel() -> str:
    """The executable that is a kernel."""
    found = os.environ.get("ENGINEHOUSE_UML") or shutil.which("linux.uml")
    if found is None:
        pytest.skip("no linux.uml here: install user-mode-linux, or name it by ENGINEHOUSE_UML")
    return found


def _inside(kernel: str, folder: Path, *words: str) -> dict[str, Any]:
    """What a command of ours prints in a group of that kernel, under half a CPU and 256 MiB."""
    command = shlex.join([sys.executable, "-m", "supervisor", *words, "--json"])
    init = folder / "init"
    init.write_text(_INIT.format(folder=folder, root=_ROOT, command=command, memory=256 * _MIB))
    init.chmod(0o755)
    argv = [kernel, "mem=512M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"]
    argv += ["con=null", "con0=null,fd:1", "quiet", "loglevel=3", "cgroup_no_v1=all"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    done = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LONGEST,
        check=False,
    )
    text = (folder / "out").read_text() if (folder / "out").exists() else ""
    assert text, f"{done.stdout.decode(errors='replace')}\n{(folder / 'err').read_text()}"
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_probe_reads_a_real_version_2_hierarchy(kernel: str, tmp_path: Path) -> None:
    """Half a CPU by the own group, 256 MiB by the one above it, each with its file."""
    found = _inside(kernel, tmp_path, "probe")

    cpu, memory = found["cpu"], found["memory"]
    assert (cpu["quota"], cpu["effective"], cpu["threads"]) == (0.5, 0.5, 1)
    assert cpu["source"] == "/sys/fs/cgroup/outer/inner/cpu.max"
    assert memory["limit_bytes"] == 256 * _MIB
    assert memory["source"] == "/sys/fs/cgroup/outer/memory.max"
    assert 0 < memory["available_bytes"] < 256 * _MIB
    assert "nr_throttled" in (tmp_path / "stat").read_text()


def test_a_plan_is_made_from_it(kernel: str, tmp_path: Path) -> None:
    """One thread, and the file that says why."""
    models = {"tiny": {"file": str(tiny_model(tmp_path))}}
    places = {"state_dir": str(tmp_path / "state"), "data_dir": str(tmp_path / "data")}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(daemon_config(fake_build(tmp_path), models=models, **places)))

    plan = _inside(kernel, tmp_path, "plan", "tiny", "--config", str(config))

    assert (plan["threads"], plan["threads_batch"]) == (1, 1)
    why = {row["choice"]: row["reason"] for row in plan["rationale"]}
    assert "quota 50000/100000 in /sys/fs/cgroup/outer/inner/cpu.max" in why["threads"]
