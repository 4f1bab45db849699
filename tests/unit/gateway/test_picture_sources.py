"""Source pictures are looked at before an engine sees them: header, size, wholeness."""

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import CallerError
from supervisor.gateway.pictures.sources import decode_text, look_at
from tests.engines.pictures import b64, png

JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08"
    + struct.pack(">HH", 48, 64)
    + b"\x03\x01\x11\x00\x02\x11\x00\x03\x11\x00\xff\xda\x00\x02..\xff\xd9"
)


def refused(data: bytes, most: int = 10**6) -> str:
    """Why it was."""
    with pytest.raises(CallerError) as caught:
        look_at(data, "image[1]", most)
    assert caught.value.code == "image_undecodable"
    assert "image[1]" in caught.value.message
    return caught.value.message


def test_sound_pictures_pass() -> None:
    """PNG and JPEG, with their sizes."""
    assert (look_at(png(64, 32), "a", 10**6).width, look_at(JPEG, "a", 10**6).height) == (64, 48)


def test_a_bomb_is_refused_by_its_header() -> None:
    """Nothing is decompressed that would be larger than allowed."""
    assert "60000x60000" in refused(png(said=(60_000, 60_000)))
    assert "max_source_pixels allows 4096" in refused(png(128, 128), 4096)
    head = JPEG.replace(struct.pack(">HH", 48, 64), struct.pack(">HH", 60_000, 60_000))
    assert "60000x60000" in refused(head)


def test_a_bomb_behind_a_small_header_is_refused() -> None:
    """Pixels for a hundred pictures in one: inflating stops at what the header says."""
    rows = zlib.compress(b"\0" * 50_000_000)
    small = png(8, 8)
    start, end = small.index(b"IDAT") - 4, small.index(b"IEND") - 4
    chunk = struct.pack(">I", len(rows)) + b"IDAT" + rows + struct.pack(">I", zlib.crc32(b"IDAT" + rows))
    assert "more pixels than its header says" in refused(small[:start] + chunk + small[end:])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"rubbish", "neither PNG nor JPEG"),
        (b"GIF89a", "a GIF"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", "a WebP"),
        (b"\0\0\0\x20ftypavif", "AVIF"),
        (b"\n<svg>", "SVG"),
        (JPEG.replace(b"\x03\x01\x11\x00\x02", b"\x01\x01\x11\x00\x02"), "a grey JPEG"),
        (png()[:60], "cut short"),
        (png()[:-12], "cut short"),
        (png(said=(64, 96)), "pixels are missing"),
        (png().replace(b"IDAT", b"IDAX"), "checksum"),
        (JPEG[:-2], "cut short"),
        (JPEG[:12], "cut short"),
        (b"\xff\xd8\xff\xd9", "cut short"),
    ],
)
def test_a_damaged_picture_says_how(data: bytes, words: str) -> None:
    """Which one, and what is wrong with it."""
    assert words in refused(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_looked_at(data: bytes) -> None:
    """Only refusals come of rubbish, also behind a good beginning."""
    for head in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", png()[:40]):
        with suppress(CallerError):
            look_at(head + data, "a", 10**6)


def test_base64_is_read_bare_and_as_a_url() -> None:
    """And nothing is fetched."""
    assert decode_text(b64(b"xy"), "a") == decode_text(f"data:image/png;base64,{b64(b'xy')}", "a") == b"xy"
    for text, code in (
        ("http://x/y.png", "url_refused"),
        ("data:image/png,xy", "image_undecodable"),
        ("%%", "image_undecodable"),
    ):
        with pytest.raises(CallerError) as caught:
            decode_text(text, "a")
        assert caught.value.code == code
