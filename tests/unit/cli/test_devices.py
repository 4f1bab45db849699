"""`probe --config`: a config's builds are asked for their devices."""

import json
from pathlib import Path

from tests.unit.cli.command import enginehouse

_SCRIPT = """#!/bin/sh
case "$*" in
*--list-devices*) echo "Available devices:"; echo "  CUDA0: Fake Card (1024 MiB, 512 MiB free)" ;;
*--version*) echo "version: 1 (abc)" ;;
*) echo "--model FNAME" ;;
esac
"""


def test_devices_of_the_configs_builds_are_listed_and_nothing_is_kept(tmp_path: Path) -> None:
    """A build that can be asked gives its rows, one that is missing gives none; no folder is made."""
    build = tmp_path / "bin" / "llama-server"
    build.parent.mkdir()
    build.write_text(_SCRIPT)
    build.chmod(0o755)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"version: 1\nstate_dir: {tmp_path}/state\ndata_dir: {tmp_path}/data\nengines:\n  llama.cpp:\n    builds:\n"
        f"      - {{name: gone, executable: /nowhere/llama-server}}\n      - {{name: fake, executable: {build}}}\n"
    )
    ended = enginehouse("probe", "--config", str(config))
    (row,) = json.loads(ended.out)["devices"]
    assert (row["id"], row["build"], row["name"]) == ("CUDA0", "fake", "Fake Card")
    assert (row["total_bytes"], row["free_bytes"]) == (2**30, 2**29)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "config.yaml"]


def test_a_wrong_config_is_a_wrong_call(tmp_path: Path) -> None:
    """A typo in the file ends the probe with exit 2 before anything is asked."""
    config = tmp_path / "config.yaml"
    config.write_text("version: 1\nmodells: {}\n")
    ended = enginehouse("probe", "--config", str(config))
    assert (ended.code, ended.out) == (2, "")
    assert "models" in ended.err
