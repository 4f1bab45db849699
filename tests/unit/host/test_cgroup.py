"""Where the limits are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.host.cgroup import CgroupFolders, find_cgroup, parse_mounts, parse_own_paths
from supervisor.host.files import HostFiles
from tests.fakes.host_tree import lay_out, unified


def _unified(root: Path, own: str | None, mounts: str) -> tuple[str, ...]:
    files = {"/proc/self/mountinfo": mounts} | ({} if own is None else {"/proc/self/cgroup": own})
    return find_cgroup(HostFiles(lay_out(root, files))).unified


def _mount(root: str, point: str = "/sys/fs/cgroup") -> str:
    return f"30 24 0:27 {root} {point} rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("own", "mounts", "folders"),
    [
        ("0::/\n", _mount("/"), ("/sys/fs/cgroup",)),
        ("0::/a/b\n", _mount("/"), ("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup")),
        ("0::/docker/1f\n", _mount("/docker/1f"), ("/sys/fs/cgroup",)),
        ("0::/docker/1f/init\n", _mount("/docker/1f"), ("/sys/fs/cgroup/init", "/sys/fs/cgroup")),
        ("0::/docker/1f\n", _mount("/docker/1"), ("/sys/fs/cgroup",)),
        ("0::/a\n", _mount("/.."), ("/sys/fs/cgroup",)),
        ("0::/../../a\n", _mount("/../.."), ("/sys/fs/cgroup/a", "/sys/fs/cgroup")),
        ("0::/../other\n", _mount("/"), ("/sys/fs/cgroup",)),
        ("0::/a\n", _mount("/", "/"), ("/a", "/")),
        ("0::/gone (deleted)\n", _mount("/"), ("/sys/fs/cgroup/gone", "/sys/fs/cgroup")),
        ("0::/a:b\n", _mount("/"), ("/sys/fs/cgroup/a:b", "/sys/fs/cgroup")),
        (None, _mount("/docker/1f"), ("/sys/fs/cgroup",)),
        ("garbage\n", _mount("/"), ("/sys/fs/cgroup",)),
        ("0::/a\n", "garbage\n30 24 - cgroup2\n", ()),
        ("0::/a\n", "", ()),
    ],
)
def test_the_own_path_is_found_below_the_mount(
    own: str | None, mounts: str, folders: tuple[str, ...], tmp_path: Path
) -> None:
    """The mount's root is taken off the own path; what can't be seen leaves the mount point."""
    assert _unified(tmp_path, own, mounts) == folders


def test_a_mount_of_a_stranger_s_cgroup_is_not_ours(tmp_path: Path) -> None:
    """Prevents: another container's tree, mounted somewhere for a monitor, read as our own limit."""
    mounts = _mount("/") + _mount("/kubepods/other", "/mnt/other")

    assert "/mnt/other" not in _unified(tmp_path, "0::/kubepods/mine\n", mounts)


def test_the_last_mount_on_a_point_hides_the_ones_before() -> None:
    """A container's own mount lies over the one that it inherited."""
    (mount,) = parse_mounts(_mount("/..") + _mount("/"))

    assert mount.root == ()


def test_names_with_blanks_are_read(tmp_path: Path) -> None:
    """Mountinfo writes a blank as an octal escape."""
    files = {"/proc/self/cgroup": "0::/my engines\n", "/proc/self/mountinfo": _mount("/", "/mnt/c\\040g")}

    folders = find_cgroup(HostFiles(lay_out(tmp_path, files))).unified

    assert folders == ("/mnt/c g/my engines", "/mnt/c g")


def test_each_old_hierarchy_has_its_own_place(tmp_path: Path) -> None:
    """Version 1: every controller is looked up in its own mount with its own path, joint mounts included."""
    files = {
        "/proc/self/cgroup": "4:memory:/m\n3:cpuset:/\n1:cpuacct,cpu:/c\n9:name=systemd:/s\n",
        "/proc/self/mountinfo": (
            "1 2 0:1 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "1 2 0:2 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
            "1 2 0:3 / /cg/memory rw - cgroup cgroup rw,memory\n"
        ),
    }

    assert find_cgroup(HostFiles(lay_out(tmp_path, files))) == CgroupFolders(
        unified=(),
        cpu=("/cg/cpu,cpuacct/c", "/cg/cpu,cpuacct"),
        cpuset=("/cg/cpuset",),
        memory=("/cg/memory/m", "/cg/memory"),
    )


def test_a_path_longer_than_any_is_passed_over() -> None:
    """Prevents: a malformed line of a megabyte turned into half a million folders."""
    assert parse_own_paths("0::" + "/a" * 500_000) == {}


def test_a_link_out_of_a_recorded_tree_is_not_followed(tmp_path: Path) -> None:
    """With a recorded root nothing of the real machine is read, not even through a link or ``..``."""
    (tmp_path / "secret").write_text("100000 100000\n")
    root = lay_out(
        tmp_path / "root",
        unified(point="/sys/fs/../../../") | {"/link": {"symlink": str(tmp_path / "secret")}, "/near": "x"},
    )
    files = HostFiles(root)

    assert files.text("/link") is None
    assert files.text("/../secret") is None
    assert files.text("/near") == "x"
