"""Pictures by the real sd-server: every route, the openai SDK, Open WebUI's requests, LoRAs, and hostile bodies."""

from __future__ import annotations

import base64
import json
import statistics
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from supervisor.gateway.pictures.png import channel, read_png, written
from tests.engines.pictures import (
    EDITS,
    IMAGES,
    JOBS,
    SMALL,
    b64,
    connection,
    drawing_daemon,
    get,
    png,
    post,
    size_of,
    states,
)
from tests.support.daemon import Daemon
from tests.support.toy_pictures import ToyModels
from tests.wire.asking import ask, instance, sdk

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

DATA = Path(__file__).resolve().parents[1] / "data" / "pictures"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, sd_server: Path, toy_models: ToyModels) -> Iterator[Daemon]:
    """It has drawn one picture with ovis and one with klein; tests must leave their engines alive."""
    folder = tmp_path_factory.mktemp("drawing")
    for name, words in (
        ("toy_style", "prompt: in toy style\nstrength: 1.5"),
        ("toy_nomatch", "purpose: speed\nrender: {steps: 1}"),
    ):
        (toy_models.loras / f"{name}.yaml").write_text(f"id: {name}\nname: {name.upper()}\n{words}\n")
    with drawing_daemon(folder, sd_server, toy_models) as running:
        for model in ("ovis", "klein"):  # what a test starts would count as left behind by it
            told = post(running, IMAGES, {"model": model, "prompt": "a cat", **SMALL})
            assert told.status == 200, told.json
        yield running
        assert not [record for record in running.records if record.get("event") == "internal_error"]


@pytest.fixture
def same_engine(daemon: Daemon) -> Iterator[None]:
    """The engine of ovis outlives the test."""
    before = instance(daemon, "ovis")["pid"]
    yield
    assert instance(daemon, "ovis")["pid"] == before is not None


def test_the_listing_says_what_each_can_do(daemon: Daemon) -> None:
    """A remote caller chooses by it: edit mode, sources, sizes, LoRAs."""
    rows = {row["id"]: row for row in get(daemon, "/v1/models").json["data"]}
    ovis, klein = rows["ovis"]["pictures"], rows["klein"]["pictures"]
    assert rows["ovis"]["capabilities"] == ["images"]
    assert rows["ovis"]["modalities"] == {"input": ["text", "image"], "output": ["image"]}
    assert (ovis["kind"], ovis["editMode"], ovis["maxSourceImages"]) == ("ovis-image", "img2img", 1)
    assert (klein["kind"], klein["editMode"], klein["maxSourceImages"]) == ("flux2-klein", "reference", 4)
    assert (ovis["weightsKind"], ovis["defaultSize"], ovis["defaultSteps"]) == ("diffusion-model", "64x64", 4)
    assert rows["only"]["pictures"]["editOnly"] is True
    assert {row["id"] for row in ovis["loras"]} >= {"toy_style", "toy_nomatch"}


@pytest.mark.usefixtures("same_engine")
def test_the_sdk_gets_a_picture_and_how_it_was_made(daemon: Daemon) -> None:
    """The same seed draws the same; size and all that was changed are told."""
    with sdk(daemon) as client:
        more = {"seed": 11, "steps": 2, "cfg_scale": 1}
        first = client.images.generate(model="ovis", prompt="a cat", size="70x64", extra_body=more)
        again = client.images.generate(model="ovis", prompt="a cat", size="72x64", extra_body=more)
    assert first.data is not None
    assert size_of(first.data[0].b64_json or "") == (72, 64)
    assert first.data == again.data
    told = first.model_dump()
    assert (told["seed"], told["steps"], told["width"], told["height"], told["model"]) == (11, 2, 72, 64, "ovis")
    assert told["settings_notes"] == ["size: 70x64 became 72x64, since this model draws in multiples of 8 pixels"]
    assert told["duration_ms"] > 0


@pytest.mark.usefixtures("same_engine")
def test_several_pictures_have_seeds_in_a_row(daemon: Daemon) -> None:
    """Each can be drawn again by its own seed."""
    both = post(daemon, IMAGES, {"model": "ovis", "prompt": "a cat", **SMALL, "n": 2}).json
    alone = post(daemon, IMAGES, {"model": "ovis", "prompt": "a cat", **SMALL, "seed": both["seeds"][1]}).json
    assert both["data"][1] == alone["data"][0]
    assert both["data"][0] != both["data"][1]


@pytest.mark.usefixtures("same_engine")
def test_a_link_leads_to_the_picture(daemon: Daemon) -> None:
    """Only for whoever has it, and only for a while; JPEG as asked."""
    told = post(
        daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL, "response_format": "url", "output_format": "jpeg"}
    )
    path = told.json["data"][0]["url"].removeprefix(daemon.base_url)
    found = ask(daemon, path)
    assert (found.status, found.headers["Content-Type"], found.body[:3]) == (200, "image/jpeg", b"\xff\xd8\xff")
    assert ask(daemon, path.replace("files/", "files/x")).error["code"] == "image_link_expired"


@pytest.mark.usefixtures("same_engine")
def test_the_sdk_edits_one_source(daemon: Daemon) -> None:
    """img2img: with strength 0 the source comes back, blurred; a second source is left out, and that is said."""
    with sdk(daemon) as client:
        made = client.images.edit(
            model="ovis",
            prompt="a cat",
            image=[("a.png", png(), "image/png"), ("b.png", png(), "image/png")],
            extra_body={**SMALL, "strength": 0.3},
        )
    told = made.model_dump()
    assert size_of(told["data"][0]["b64_json"]) == (64, 64)
    assert told["settings_notes"] == ["image: 1 of 2 source pictures are used by this model"]
    assert "img2img_skipped_reason" not in told


def _red(picture: str) -> bytes:
    data = base64.b64decode(picture)
    return channel(data, read_png(data, lambda _width, _height: None), 0)


def _changed(picture: str, source: bytes) -> tuple[float, float]:
    """How far the outer columns at the left and at the right are from the source, by the middle of all pixels."""
    halves: tuple[list[int], list[int]] = ([], [])
    for at, (here, there) in enumerate(zip(_red(picture), source, strict=True)):
        if at % 64 < 24 or at % 64 >= 40:
            halves[at % 64 >= 40].append(abs(here - there))
    return statistics.mean(halves[0]), statistics.mean(halves[1])


def _grey(pixel: bytes, *rest: bytes, kind: int = 0) -> bytes:
    """64 x 64: all of one kind, or of two halves."""
    halves = (pixel * 32, (rest or (pixel,))[0] * 32)
    rows = zlib.compress((b"\0" + b"".join(halves)) * 64)
    return written(struct.pack(">IIBBBBB", 64, 64, 8, kind, 0, 0, 0), [(b"IDAT", rows)])


# Its left half is to be drawn anew, by what is transparent; and the same by what is white.
BY_ALPHA, BY_WHITE = _grey(b"\xff\xff\xff\0", b"\0\0\0\xff", kind=6), _grey(b"\xff", b"\0")


@pytest.fixture(scope="module")
def kept(daemon: Daemon) -> bytes:
    """The source as it comes back where a mask lets nothing be drawn: blurred."""
    body = {"model": "ovis", "prompt": "a cat", "images": [b64(png())], "mask": b64(_grey(b"\0")), **SMALL}
    return _red(post(daemon, EDITS, body).json["data"][0]["b64_json"])


@pytest.mark.usefixtures("same_engine")
def test_what_is_transparent_in_a_mask_is_drawn_anew(daemon: Daemon, kept: bytes) -> None:
    """As the SDK's users mean it, in a form; the rest stays the source. A white mask means the same."""
    drawn = []
    with sdk(daemon) as client:
        for mask in (BY_ALPHA, BY_WHITE):
            made = client.images.edit(
                model="ovis",
                prompt="a cat",
                image=("a.png", png(), "image/png"),
                mask=("m.png", mask, "image/png"),
                extra_body={**SMALL, "strength": 0.9},
            )
            assert made.data is not None
            drawn.append(made.data[0].b64_json or "")
    assert drawn[0] == drawn[1]
    left, right = _changed(drawn[0], kept)
    assert right * 4 < left


@pytest.mark.usefixtures("same_engine")
@pytest.mark.parametrize("inverted", [0, 1])
def test_a_mask_of_a1111s_is_what_is_painted_unless_inverted(daemon: Daemon, kept: bytes, inverted: int) -> None:
    """The other way round than OpenAI's: what is opaque is drawn anew."""
    body = {"prompt": "a cat", "init_images": [b64(png())], "mask": b64(BY_ALPHA), "denoising_strength": 0.9}
    body |= {"width": 64, "height": 64, "steps": 2, "seed": 7, "override_settings": {"sd_model_checkpoint": "ovis"}}
    told = post(daemon, "/sdapi/v1/img2img", {**body, "inpainting_mask_invert": inverted})
    assert told.status == 200, told.json
    left, right = _changed(told.json["images"][0], kept)
    assert right * 4 < left if inverted else left * 4 < right


@pytest.mark.usefixtures("same_engine")
def test_a_grey_source_is_read_as_one_of_colours(daemon: Daemon, kept: bytes) -> None:
    """The engine itself refuses what has no colours, which scans have not."""
    body = {"model": "ovis", "prompt": "a cat", "mask": b64(_grey(b"\0")), **SMALL}
    for grey in (_grey(b"\x80"), _grey(b"\x80\xff", kind=4)):
        told = post(daemon, EDITS, {**body, "images": [b64(grey)]})
        assert told.status == 200, told.json
        assert _red(told.json["data"][0]["b64_json"]) == kept


def test_three_sources_are_looked_at(daemon: Daemon) -> None:
    """A reference model takes them all, and has no strength."""
    sources = [b64(png()), f"data:image/png;base64,{b64(png(96, 64))}", {"image_url": b64(png(64, 96))}]
    told = post(daemon, EDITS, {"model": "klein", "prompt": "all", "images": sources, "strength": 0.5, **SMALL}).json
    assert size_of(told["data"][0]["b64_json"]) == (64, 64)
    assert told["settings_notes"] == ["strength: this model looks at its sources and does not begin with one of them"]


def test_a_model_that_only_edits_wants_a_source(daemon: Daemon) -> None:
    """Before anything is started."""
    told = post(daemon, IMAGES, {"model": "only", "prompt": "x", **SMALL})
    assert (told.status, told.json["error"]["code"]) == (400, "image_source_required")
    assert not [row for row in daemon.records if row.get("event") == "launch_started" and row["model"] == "only"]


@pytest.mark.usefixtures("same_engine")
def test_a_job_tells_each_step(daemon: Daemon) -> None:
    """From its place in the queue to the end; then its pictures can be fetched, by its caller."""
    begun = post(daemon, JOBS, {"model": "ovis", "prompt": "a cat", "size": "128x128", "steps": 5})
    assert (begun.status, begun.json["object"]) == (202, "image.job")
    told = list(states(daemon, begun.json["id"]))
    assert [event["step"] for event in told if event["state"] == "drawing"] == [1, 2, 3, 4, 5]
    assert {event["steps"] for event in told if event["state"] == "drawing"} == {5}
    assert [event["state"] for event in told if event["state"] != "drawing"] in (
        ["starting", "decoding", "done"],
        ["queued", "starting", "decoding", "done"],
    )
    done = get(daemon, f"{JOBS}/{begun.json['id']}").json
    assert done["status"] == "done"
    assert size_of(done["result"]["data"][0]["b64_json"]) == (128, 128)
    assert get(daemon, f"{JOBS}/img-nobodys").json["error"]["code"] == "image_job_not_found"


@pytest.mark.usefixtures("same_engine")
def test_loras_are_applied_by_id(daemon: Daemon) -> None:
    """Words and strength come from the installation; taken off again, the picture is the one from before, exactly."""
    body = {"model": "ovis", "prompt": "a cat", **SMALL}
    before = post(daemon, IMAGES, body).json
    told = post(daemon, IMAGES, {**body, "loras": [{"id": "toy_style"}]}).json
    after = post(daemon, IMAGES, body).json
    assert told["loras"] == [{"id": "toy_style", "name": "TOY_STYLE"}]
    assert told["settings_notes"] == ["prompt: 'in toy style' was added for TOY_STYLE"]
    assert before["data"] == after["data"] != told["data"]
    assert "loras" not in before


@pytest.mark.usefixtures("same_engine")
def test_a_speed_lora_sets_steps_unless_the_caller_did(daemon: Daemon) -> None:
    """And one that matches nothing says so: by its names, and by what the engine applied."""
    body = {"model": "ovis", "prompt": "a cat", "size": "64x64", "loras": ["toy_nomatch"]}
    told = post(daemon, IMAGES, body).json
    assert told["steps"] == 1
    assert "steps: 1 by TOY_NOMATCH" in told["settings_notes"]
    assert sum("match nothing" in note or "may change nothing" in note for note in told["settings_notes"]) == 2
    assert post(daemon, IMAGES, {**body, "steps": 2}).json["steps"] == 2


def test_a_lora_for_another_model_never_reaches_the_engine(daemon: Daemon, toy_models: ToyModels) -> None:
    """Its shape would end the whole server; an id that nobody installed is refused as well."""
    klein = post(daemon, IMAGES, {"model": "klein", "prompt": "x", **SMALL, "loras": ["toy_style"]})
    assert (klein.status, klein.json["error"]["code"]) == (400, "lora_incompatible")
    assert "128x128" in klein.json["error"]["message"]
    unknown = post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL, "loras": ["toy_stile"]})
    assert (unknown.status, unknown.json["error"]["code"]) == (400, "lora_not_found")
    assert "toy_style" in unknown.json["error"]["message"]


def _open_webui() -> list[Any]:
    recorded = json.loads((DATA / "open_webui.json").read_text())
    return [*recorded["automatic1111"], *recorded["openai"]]


@pytest.mark.usefixtures("same_engine")
def test_what_open_webui_sends_draws_a_picture(daemon: Daemon) -> None:
    """Its requests as they are: the model is found, chosen, and draws."""
    asking = connection(daemon)
    drawn = 0
    for sent in _open_webui():
        body = json.dumps(sent["json"]).replace("MODEL", "ovis") if "json" in sent else None
        headers = {"Content-Type": "application/json", **sent["headers"]}
        asking.request(sent["method"], sent["path"], body, headers)
        answer = asking.getresponse()
        told = json.loads(answer.read())
        assert answer.status == 200, told
        if sent["path"].endswith("sd-models"):
            assert {"ovis", "klein"} <= {row["title"] for row in told} == {row["model_name"] for row in told}
        elif sent["path"].endswith("txt2img"):
            assert [size_of(image) for image in told["images"]] == [(64, 64)] * sent["json"]["batch_size"]
            assert json.loads(told["info"])["model"] == "ovis"
            drawn += 1
        elif sent["path"].endswith("generations"):
            assert size_of(told["data"][0]["b64_json"]) == (64, 64)
            drawn += 1
    asking.close()
    assert drawn == 3


@pytest.mark.usefixtures("same_engine")
def test_a1111s_img2img_begins_with_the_source(daemon: Daemon) -> None:
    """With the model that was named for this request alone."""
    body = {
        "prompt": "x",
        "init_images": [b64(png())],
        "denoising_strength": 0.3,
        "width": 64,
        "height": 64,
        "steps": 4,
        "override_settings": {"sd_model_checkpoint": "ovis [0123abcd]"},
    }
    told = post(daemon, "/sdapi/v1/img2img", body)
    assert told.status == 200, told.json
    assert size_of(told.json["images"][0]) == (64, 64)
    refused = post(daemon, "/sdapi/v1/img2img", {"prompt": "x"})
    assert refused.json["detail"] == refused.json["error"]["message"]


HOSTILE: list[dict[str, Any]] = [
    {"size": "-64x64"},
    {"size": "20000x20000"},
    {"size": "0x0"},
    {"size": "axb"},
    {"size": ["64x64"]},
    {"size": None, "width": 1e300},
    {"steps": 0},
    {"steps": 10**9},
    {"steps": "many"},
    {"n": 0},
    {"n": 1000},
    {"seed": 10**30},
    {"seed": {}},
    {"cfg_scale": -1},
    {"cfg_scale": 1e9},
    {"strength": -1, "images": [b64(png())]},
    {"sampler": "../../etc/passwd"},
    {"scheduler": 7},
    {"prompt": ""},
    {"prompt": ["x"]},
    {"prompt": "x" * 20_000},
    {"output_format": "exe"},
    {"output_compression": 101},
    {"background": "transparent"},
    {"stream": True},
    {"loras": "toy_style"},
    {"loras": [{"id": "toy_style", "path": "/etc/passwd"}]},
    {"loras": ["../toy_style"]},
    {"images": ["http://127.0.0.1:1/x.png"]},
    {"images": ["file:///etc/passwd"]},
    {"images": [b64(png())[:100]]},
    {"images": [b64(b"GIF89a" + b"\0" * 100)]},
    {"images": [b64(png(said=(60_000, 60_000)))]},
    {"images": [b64(png(said=(8, 8)))]},
    {"images": [b64(png(said=(0, 64)))]},
    {"images": [7]},
    {"mask": {}},
    {"mask": ["x"]},
    {"images": [b64(png())], "mask": b64(png(64, 32))},
    {"images": [b64(b"RIFF\x24\0\0\0WEBPVP8 ")]},
    {"images": [""]},
    {"images": [b64(png())], "mask": b64(png()[:50])},
    {"output_format": "webp"},
    {"cfg_scale": "nan"},
    {"cfg_scale": "1e999"},
    {"strength": "-inf", "images": [b64(png())]},
    {"width": True, "size": None},
    {"n": 1.5},
    {"n": "9" * 19},
    {"negative_prompt": 5},
    {"loras": [["toy_style"]]},
    {"loras": ["\0"]},
    {"images": {"a": 1}},
]


@pytest.mark.usefixtures("same_engine")
@pytest.mark.parametrize("hostile", HOSTILE, ids=[", ".join(row)[:30] for row in HOSTILE])
def test_a_wrong_value_is_refused_before_the_engine(daemon: Daemon, hostile: dict[str, Any]) -> None:
    """The engine would take some of them and do something else, and run out of memory with others."""
    started = sum(record.get("event") == "request_leased" for record in daemon.records)
    told = post(daemon, IMAGES, {"model": "ovis", "prompt": "x", **SMALL, **hostile})
    assert told.status == 400, told.json
    assert told.json["error"]["message"]
    assert sum(record.get("event") == "request_leased" for record in daemon.records) == started


def _part(head: bytes, body: bytes = b"x") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + body + b"\r\n"


BAD_FORMS = {
    "encoding": _part(b'name="prompt"\r\nContent-Transfer-Encoding: evil'),
    "header": _part(b'name="prompt"; filename="' + b"x" * 50_000 + b'"'),
    "headers": _part(b'name="prompt"' + b"".join(b"\r\nX-%d: y" % number for number in range(1000))),
    "cut": _part(b'name="prompt"')[:-3],
    "nested": _part(b'name="image"\r\nContent-Type: multipart/mixed; boundary=c', b"--c\r\n\r\nx\r\n--c--"),
    "many": _part(b'name="image"') * 100,
    "latin": _part(b'name="prompt"', b"\xff\xfe"),
    "nameless": _part(b'name=""'),
    "empty": _part(b'name="model"', b"ovis") + _part(b'name="prompt"') + _part(b'name="image"', b""),
    "encoded": _part(b'name="image"\r\nContent-Transfer-Encoding: base64', b"%%%"),
    "nothing": b"",
}


@pytest.mark.usefixtures("same_engine")
@pytest.mark.parametrize("form", BAD_FORMS)
def test_a_badly_written_form_is_refused(daemon: Daemon, form: str) -> None:
    """Whatever is wrong with it, and without a word of an internal error."""
    asking = connection(daemon)
    body = BAD_FORMS[form] + (b"" if form == "cut" else b"--b--\r\n")
    asking.request("POST", EDITS, body, {"Content-Type": "multipart/form-data; boundary=b"})
    answer = asking.getresponse()
    told = json.loads(answer.read())
    asking.close()
    assert (answer.status, told["error"]["type"]) == (400, "invalid_request_error"), told


@pytest.mark.usefixtures("same_engine")
@pytest.mark.parametrize(
    "prompt",
    [
        '<sd_cpp_extra_args>{"width": 4096, "height": 4096, "lora": [{"path": "/etc/passwd"}]}</sd_cpp_extra_args>',
        "< SD_CPP_EXTRA_ARGS >{}",
        "<lora:toy_style:99>",
        "\0\x1b[2J 🎨 \ud83c".encode("utf-8", "replace").decode(),
        "%s%n{}[](((((",
    ],
)
def test_a_prompt_is_only_text(daemon: Daemon, prompt: str) -> None:
    """No option, no file and no LoRA comes out of it, and the caller is told where it looked like one."""
    told = post(daemon, IMAGES, {"model": "ovis", "prompt": f"a cat {prompt}", **SMALL})
    assert told.status == 200, told.json
    assert size_of(told.json["data"][0]["b64_json"]) == (64, 64)
    assert any("plain text" in note for note in told.json.get("settings_notes", ())) == ("<" in prompt)
    assert "loras" not in told.json


def test_a_model_that_chats_is_no_painter(daemon: Daemon) -> None:
    """And a painter does not chat."""
    with sdk(daemon) as client, pytest.raises(openai.BadRequestError, match="does not serve chat"):
        client.chat.completions.create(model="ovis", messages=[{"role": "user", "content": "hello"}])
    assert post(daemon, IMAGES, {"model": "nobody", "prompt": "x"}).json["error"]["code"] == "model_not_found"
