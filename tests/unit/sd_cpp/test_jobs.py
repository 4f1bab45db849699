"""sd-server's native job interface: what is sent, and what its answers mean."""

from base64 import b64encode
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.pictures import EditMode, JobState, LoraUse, PictureAbilities, PictureWish, WeightsKind
from engines.sd_cpp import jobs

ABILITIES = PictureAbilities(
    kind="ovis-image",
    weights_kind=WeightsKind.DIFFUSION_MODEL,
    edit_mode=EditMode.IMG2IMG,
    max_sources=1,
    edit_only=False,
    masks=True,
    width=1024,
    height=1024,
    steps=20,
    guidance=5.0,
    multiple=8,
)
WISH = PictureWish(prompt="a cat", width=64, height=72, steps=3, guidance=2.5, seed=9)


def test_every_number_is_said() -> None:
    """Nothing is left to the server's own defaults, and no picture names files of this machine."""
    path, body = jobs.submit(replace(WISH, loras=(LoraUse("a.safetensors", 0.5),), sampler="euler"), ABILITIES)
    assert path == "/sdcpp/v1/img_gen"
    assert (body["width"], body["height"], body["seed"], body["batch_count"]) == (64, 72, 9, 1)
    assert body["sample_params"] == {"sample_steps": 3, "guidance": {"txt_cfg": 2.5}, "sample_method": "euler"}
    assert body["lora"] == [{"path": "a.safetensors", "multiplier": 0.5}]
    assert body["embed_image_metadata"] is False
    assert "init_image" not in body


def test_tiles_are_as_many_pixels_for_each_kind() -> None:
    """The engine counts cells, of which a Flux.2 has a quarter as many: its tile was the whole picture."""
    for kind, cells in (("ovis-image", 32), ("flux2-klein", 16), ("sdxl", 32)):
        _, body = jobs.submit(replace(WISH, tiled=True), replace(ABILITIES, kind=kind))
        assert body["vae_tiling_params"] == {"enabled": True, "tile_size_x": cells, "tile_size_y": cells}
    assert jobs.submit(WISH, ABILITIES)[1]["vae_tiling_params"] == {"enabled": False}


def test_sources_go_where_the_model_looks() -> None:
    """One begins with a source, the other looks at all of them."""
    wish = replace(WISH, sources=(b"1", b"2"), strength=0.5, mask=b"m")
    _, begins = jobs.submit(wish, ABILITIES)
    _, looks = jobs.submit(replace(wish, strength=None), replace(ABILITIES, edit_mode=EditMode.REFERENCE))
    assert (begins["init_image"], begins["strength"], begins["mask_image"]) == (b64encode(b"1").decode(), 0.5, "bQ==")
    assert looks["ref_images"] == [b64encode(b"1").decode(), b64encode(b"2").decode()]
    assert "init_image" not in looks


def test_a_job_is_begun_or_refused() -> None:
    """A refusal is in the engine's words."""
    assert jobs.read_submitted(202, b'{"id": "job_6b0d932d_00000001"}') == "job_6b0d932d_00000001"
    with pytest.raises(ValueError, match="queue is full"):
        jobs.read_submitted(429, b'{"error": "job queue is full"}')
    with pytest.raises(ValueError, match="answered 202"):
        jobs.read_submitted(202, b'{"id": "../../admin"}')
    with pytest.raises(ValueError, match="no JSON"):
        jobs.read_submitted(500, b"<html>")


@pytest.mark.parametrize(
    ("status", "document", "state"),
    [
        (200, {"status": "queued"}, JobState.QUEUED),
        (200, {"status": "generating", "result": None}, JobState.RUNNING),
        (200, {"status": "failed", "error": {"code": "generation_failed", "message": "no results"}}, JobState.FAILED),
        (404, {"error": "job not found"}, JobState.GONE),
        (410, {"error": "job expired"}, JobState.GONE),
    ],
)
def test_a_state_is_read(status: int, document: dict[str, Any], state: JobState) -> None:
    """By the engine's own words."""
    assert jobs.read_job(status, orjson.dumps(document)).state is state


def test_pictures_and_errors_are_read() -> None:
    """In the order of their index."""
    done = {"status": "completed", "result": {"images": [{"index": 0, "b64_json": "eA=="}, {"index": 1}]}}
    assert jobs.read_job(200, orjson.dumps(done)).images == ("eA==",)
    failed = jobs.read_job(200, b'{"status": "failed", "error": {"message": "out"}}')
    assert failed.error == "out"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["completed", "failed", "images", "x"]),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["status", "result", "images", "error", "message", "id"]), inside, max_size=4)
    ),
)


@given(st.integers(100, 599), _JSON)
def test_any_answer_is_read_or_refused(status: int, document: Any) -> None:
    """An engine's answer may have any shape: only ValueError comes of it."""
    for read in (jobs.read_job, jobs.read_submitted):
        try:
            read(status, orjson.dumps(document))
        except ValueError:
            continue
