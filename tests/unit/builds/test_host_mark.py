"""The mark under which device listings are remembered."""

from pathlib import Path

import pytest

from supervisor.builds.host_mark import host_mark


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "name",
    ["dev/dri/renderD128", "dev/nvidia0", "dev/kfd", "proc/driver/nvidia/version", "etc/vulkan/icd.d/lvp.json"],
)
def test_a_new_device_driver_or_boot_changes_the_mark(tmp_path: Path, name: str) -> None:
    """What a listing depends on is in it; on an empty machine it is steady."""
    before = host_mark(tmp_path)
    assert host_mark(tmp_path) == before
    _write(tmp_path / name, "560.1")
    with_device = host_mark(tmp_path)
    _write(tmp_path / "proc/sys/kernel/random/boot_id", "b")
    assert len({before, with_device, host_mark(tmp_path)}) == 3
