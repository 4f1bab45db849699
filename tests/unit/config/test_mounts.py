from __future__ import annotations

import os

import pytest

from supervisor.config.mounts import tells_of_every_change

DISK, SHARED, MEMORY = os.makedev(8, 1), os.makedev(0, 50), os.makedev(0, 5)
INFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:5 / /run rw,nosuid - tmpfs tmpfs rw,size=1k
40 22 0:50 / /mnt/host rw,relatime master:3 - virtiofs share rw
41 22 8:1 /srv/a\\040b.yaml /etc/eh/my\\040config.yaml rw,relatime - ext4 /dev/sda1 rw
"""
CONFIG = "/etc/eh/config.yaml"


@pytest.mark.parametrize(
    ("devices", "files", "told"),
    [
        ([DISK], [CONFIG], True),
        ([DISK, MEMORY], [CONFIG, "/run/eh/config.yaml"], True),
        ([DISK, SHARED], [CONFIG, "/mnt/host/config.yaml"], False),
        ([os.makedev(9, 9)], [CONFIG], False),
        ([DISK], ["/etc/eh/my config.yaml"], False),
        ([], [CONFIG], False),
    ],
)
def test_who_is_told_of_every_change(devices: list[int], files: list[str], told: bool) -> None:
    """Only on file systems that this kernel alone writes, and not of a file that is mounted by itself."""
    assert tells_of_every_change(devices, files, INFO) is told


@pytest.mark.parametrize("info", ["", "nonsense\n\n", "1 2 x:y / / rw - ext4 a b\n", "1 2 8:1 / / rw -\n"])
def test_a_table_that_can_not_be_read_promises_nothing(info: str) -> None:
    """Then the file is looked at more often, which is never wrong."""
    assert not tells_of_every_change([DISK], [CONFIG], info)
