"""Pictures that are too large for the memory there is: by the book, by the engine's own failure, and by the kernel."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from tests.engines.pictures import IMAGES, SMALL, drawing_daemon, post, size_of
from tests.support.cgroups import NoCgroupError, made_cgroup
from tests.support.toy_pictures import ToyModels
from tests.wire.asking import instance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

_MIB = 2**20
# A band: in tiles it takes a quarter of the memory, and little more time.
BAND = {"model": "ovis", "prompt": "x", "size": "768x64", "steps": 1, "seed": 7}


def test_a_picture_that_does_not_fit_is_tiled_or_refused(
    tmp_path: Path, sd_server: Path, toy_models: ToyModels
) -> None:
    """Decoded in tiles where that is enough, and said; else refused with the arithmetic, before anything starts."""
    host = {"memory": "256MiB", "reserve": {"memory": "0MiB"}}
    with drawing_daemon(tmp_path, sd_server, toy_models, host=host, pictures={"max_edge": 4096}) as daemon:
        told = post(daemon, IMAGES, {"model": "ovis", "prompt": "x", "size": "4096x4096", "steps": 1})
        assert (told.status, told.json["error"]["code"]) == (400, "image_out_of_memory")
        assert "of its engine" in told.json["error"]["message"]
        assert daemon.engines() == []
        tiled = post(daemon, IMAGES, BAND)
        assert tiled.status == 200, tiled.json
        assert any("tiles, since" in note for note in tiled.json["settings_notes"])
        assert size_of(tiled.json["data"][0]["b64_json"]) == (768, 64)


def test_an_engine_that_runs_out_of_memory_is_asked_for_less(
    tmp_path: Path, sd_server: Path, toy_models: ToyModels
) -> None:
    """Once, in tiles and with idle engines gone; then the arithmetic is told. The engine lives through all of it."""
    with drawing_daemon(tmp_path, sd_server, toy_models) as daemon:
        for model in ("klein", "ovis"):
            assert post(daemon, IMAGES, {"model": model, "prompt": "x", **SMALL}).status == 200
        engine = psutil.Process(instance(daemon, "ovis")["pid"])
        _leave(engine, 70 * _MIB)
        tiled = post(daemon, IMAGES, BAND)
        assert tiled.status == 200, tiled.json
        notes = tiled.json["settings_notes"]
        assert notes == ["memory: decoded in tiles, since the engine ran out of memory without them"]
        assert size_of(tiled.json["data"][0]["b64_json"]) == (768, 64)
        gone = daemon.wait_for_event("launch_exited", model="klein", planned=True)
        assert gone is not None
        _leave(engine, 8 * _MIB)
        told = post(daemon, IMAGES, {**BAND, "size": "512x512"})
        assert (told.status, told.json["error"]["code"]) == (400, "image_out_of_memory")
        assert "the engine could not get" in told.json["error"]["message"]
        assert "decoded in tiles already" in told.json["error"]["message"]
        assert post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL}).status == 200
        assert instance(daemon, "ovis")["pid"] == engine.pid


def _leave(engine: psutil.Process, size: int) -> None:
    """So much may it still ask for."""
    most = engine.memory_info().vms + size
    engine.rlimit(psutil.RLIMIT_AS, (most, psutil.RLIM_INFINITY))


@pytest.mark.slow
def test_an_engine_that_the_kernel_kills_for_its_memory_is_asked_for_less(
    tmp_path: Path, sd_server: Path, toy_models: ToyModels
) -> None:
    """The book was told of more than there is: the picture ends the engine, and is drawn in tiles by the next."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(made_cgroup(memory=360 * _MIB))
        except NoCgroupError as error:
            pytest.skip(str(error))
        host = {"memory": "4GiB"}
        daemon = stack.enter_context(drawing_daemon(tmp_path, sd_server, toy_models, host=host, inside=group))
        told = post(daemon, IMAGES, {**BAND, "size": "1024x128"})
        assert told.status == 200, told.json
        assert any("ran out of memory" in note for note in told.json["settings_notes"])
        last = instance(daemon, "ovis")["last_exit"]
        assert (last["kind"], last["planned"]) == ("OUT_OF_HOST_MEMORY", False)
