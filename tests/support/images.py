"""Builds the image for real and runs it, where no registry and no Docker engine can be had.

By Podman and runc, on a base image made of Debian packages. All is kept in ``$ENGINEHOUSE_TEST_CACHE``, else
``$XDG_CACHE_HOME/enginehouse-ci``: a second run builds only what has changed. As root on Debian, since control groups
and overlay mounts are asked for.
"""

from __future__ import annotations

import ast
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("podman", "runc", "conmon", "mmdebstrap")
BASE = "localhost/python:3.11-slim"
IMAGE = "localhost/enginehouse:test"
_PARTS = "localhost/enginehouse-build:test"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_KEYS = frozenset(
    {"index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout", "retries", "proxy"}
)
# Of this process's own hard limits: without CAP_SYS_RESOURCE, Podman's larger wishes are refused.
_MOST_FILES = 16384
_LONGEST_BUILD = 1500.0


class NoContainersError(Exception):
    """They can't be had here, and why."""


def why_not() -> str | None:
    """What is missing; None: nothing."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the image's engine is for Linux x86-64"
    if os.geteuid() != 0:
        return "building and limiting containers here needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt install {' '.join(missing)}"
    if not Path("/etc/debian_version").exists():
        return "the base image is made of Debian's packages"
    return None


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman with a store of its own in ``home``."""

    home: Path

    @staticmethod
    def at_cache() -> Podman:
        """The one whose store outlives a run."""
        if chosen := os.environ.get("ENGINEHOUSE_TEST_CACHE"):
            base = Path(chosen)
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginehouse-ci"
        podman = Podman(base / "containers-1")
        podman.home.mkdir(parents=True, exist_ok=True)
        podman.settings.write_text(_settings(), encoding="utf-8")
        if podman.run("info", check=False).returncode != 0:  # such as a cache that was moved: the store names its place
            shutil.rmtree(podman.home / "store", ignore_errors=True)
            shutil.rmtree(podman.home / "run", ignore_errors=True)
        return podman

    @property
    def settings(self) -> Path:
        """Its ``containers.conf``."""
        return self.home / "containers.conf"

    def argv(self, *arguments: str) -> list[str]:
        """A command."""
        places = ["--root", str(self.home / "store"), "--runroot", str(self.home / "run")]
        return ["podman", *places, "--storage-driver", "overlay", *arguments]

    def run(self, *arguments: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Raises:
            AssertionError: it failed; its words are in the message.
        """
        done = subprocess.run(
            self.argv(*arguments),
            env={**os.environ, "CONTAINERS_CONF": str(self.settings)},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"podman {' '.join(arguments)}: {done.returncode}\n{(done.stdout + done.stderr)[-6000:]}"
            )
        return done


def build_image(podman: Podman, extra: Mapping[str, str]) -> str:
    """The image of the working tree; ``extra`` are build arguments.

    Raises:
        NoContainersError: the base image can't be made here.
        AssertionError: the Dockerfile is wrong.
    """
    _make_base(podman)
    with tempfile.TemporaryDirectory(prefix="eh-image-") as folder:
        pip = Path(folder) / "pip.conf"
        pip.write_text(_pip_settings(), encoding="utf-8")
        pip.chmod(0o644)
        # Mounted for the steps alone: nothing of this machine's set-up stays in the image.
        mounts = [f"{_CERTIFICATES}:{_CERTIFICATES}:ro", f"{pip}:/etc/pip.conf:ro"]
        shared = ["--pull=never", "--isolation", "chroot", "--network", "host", "--format", "docker"]
        shared += [word for mount in mounts for word in ("-v", mount)]
        wanted = {"BASE_IMAGE": BASE, **extra}
        shared += [word for item in wanted.items() for word in ("--build-arg", "=".join(item))]
        for target, tag in (("build", _PARTS), ("cpu", IMAGE)):
            podman.run("build", *shared, "--target", target, "-t", tag, str(ROOT), timeout=_LONGEST_BUILD)
    podman.run("image", "prune", "--force", check=False)
    return IMAGE


def _make_base(podman: Podman) -> None:
    if podman.run("image", "exists", BASE, check=False).returncode == 0:
        return
    packed = podman.home / "base.tar"
    if not packed.is_file():
        _debootstrap(packed)
    changes = ["ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "ENV LANG=C.UTF-8"]
    podman.run("import", "-q", *(word for one in changes for word in ("--change", one)), str(packed), BASE, timeout=600)


def _debootstrap(target: Path) -> None:
    """A stand-in for ``python:3.11-slim``: Debian 12 with its own Python, called as there."""
    sources = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    source = next((path for path in sources if path.is_file() and path.stat().st_size), None)
    if source is None:
        raise NoContainersError("apt has no sources here to make a base image of")
    hook = (
        'rm -f "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED; '
        'for n in python python3 python3.11; do ln -sf /usr/bin/python3.11 "$1/usr/local/bin/$n"; done; '
        ': > "$1/etc/pip.conf"; : > "$1/etc/hostname"; : > "$1/etc/resolv.conf"; rm -rf "$1"/var/cache/apt/*.bin'
    )
    part = target.with_name("base.part.tar")
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"']
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")]
    argv += ["--include=ca-certificates,python3,python3-venv,python3-pip,netbase,tzdata", f"--customize-hook={hook}"]
    done = subprocess.run([*argv, "bookworm", str(part), str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoContainersError(f"mmdebstrap can't make a base image here: {done.stderr[-2000:]}")
    part.replace(target)


def _settings() -> str:
    def most(what: int) -> int:
        hard = resource.getrlimit(what)[1]
        return _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)

    files, processes = most(resource.RLIMIT_NOFILE), most(resource.RLIMIT_NPROC)
    return (
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[network]\nnetwork_backend = "cni"\n'
    )


def _pip_settings() -> str:
    """This machine's way to its package index, for the steps of the build."""
    lines = ["[global]", f"cert = {_CERTIFICATES}"]
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    for line in listed.splitlines():
        key, _, said = line.partition("=")
        name = key.rpartition(".")[2]
        if name not in _PIP_KEYS:
            continue
        with suppress(ValueError, SyntaxError):
            value = str(ast.literal_eval(said))
            if "index-url" in name:  # folders of this machine aren't in the image
                value = " ".join(url for url in value.split() if not url.startswith("file:"))
            if value:
                lines.append(f"{'timeout' if name == 'default-timeout' else name} = {value}")
    return "\n".join(lines) + "\n"


def limited(*more: str) -> Sequence[str]:
    """Options of a run as a careful owner gives them: read-only, without rights, with a group of its own."""
    return (
        "--network=host",
        "--cgroupns=private",
        "--read-only",
        "--tmpfs=/tmp",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--pids-limit=512",
        *more,
    )
