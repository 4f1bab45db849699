"""The image, built once, and containers of it that are gone when their test ends."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import sd_server
from tests.support.images import ROOT, NoContainersError, Podman, build_image, why_not

_PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="session")
def podman() -> Podman:
    """Podman with the project's own store."""
    missing = why_not()
    if missing is not None:
        pytest.skip(missing)
    return Podman.at_cache()


@pytest.fixture(scope="session")
def image(podman: Podman) -> Iterator[str]:
    """The image of this working tree; with sd-server where the tests have one, since it takes minutes to compile."""
    prebuilt = ROOT / "deploy" / "image" / "prebuilt"
    program = sd_server.cache_folder() / "sd-server"
    arguments = {"SD_SERVER": "none"}
    if program.is_file():
        prebuilt.mkdir(exist_ok=True)
        (prebuilt / "sd-server").write_bytes(program.read_bytes())
        arguments = {"SD_SERVER": "prebuilt/sd-server"}
    try:
        yield build_image(podman, arguments)
    except NoContainersError as error:
        pytest.skip(str(error))
    finally:
        with suppress(OSError):
            (prebuilt / "sd-server").unlink(missing_ok=True)
            prebuilt.rmdir()


@dataclass
class Container:
    """One that runs."""

    podman: Podman
    name: str

    def logs(self) -> str:
        """All that it wrote, both streams."""
        done = self.podman.run("logs", self.name)
        return done.stdout + done.stderr

    def wait_for(self, text: str) -> str:
        """Its log, once the text stands in it.

        Raises:
            AssertionError: it did not come in time.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = self.logs()
            if text in found:
                return found
            # Podman tells of no lines: its log is asked again.
            subprocess.run(["sleep", "0.2"], check=True)
        raise AssertionError(f"{text!r} is not in the log:\n{self.logs()[-4000:]}")


@pytest.fixture
def state(podman: Podman) -> Iterator[str]:
    """A volume for ``/state``."""
    name = f"eh-test-{secrets.token_hex(4)}"
    podman.run("volume", "create", name)
    yield name
    podman.run("volume", "rm", "--force", name)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """A folder with the demo model, which others may read."""
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    copy = folder / demo_model.name
    copy.write_bytes(demo_model.read_bytes())
    copy.chmod(0o644)
    return folder
