"""PNG without a library: channels are read whatever the filter, masks mean what their API says, greys get colours."""

import random
import struct
import zlib
from itertools import product

import pytest

from supervisor.errors import CallerError
from supervisor.gateway.pictures.masks import Mask
from supervisor.gateway.pictures.png import Png, channel, chunks, read_png, write_grey, written
from supervisor.gateway.pictures.sources import Source, look_at, look_at_mask

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Two rows: transparent, half, opaque, opaque; the same again.
ALPHA = bytes((0, 100, 255, 255)) * 2


def made(width: int, colour: int, depth: int, packed: bytes, tables: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """A PNG of these rows; each row takes the next filter."""
    length = (width * _CHANNELS[colour] * depth + 7) // 8
    lines = [packed[at : at + length] for at in range(0, len(packed), length)]
    step, above, rows = max(1, _CHANNELS[colour] * depth // 8), bytes(length), b""
    for number, line in enumerate(lines):
        rows += bytes((number % 5,)) + _filtered(number % 5, line, above, step)
        above = line
    head = struct.pack(">IIBBBBB", width, len(lines), depth, colour, 0, 0, 0)
    parts = ((b"IHDR", head), *tables, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _filtered(kind: int, line: bytes, above: bytes, step: int) -> bytes:
    left = bytes(step) + line
    corner = bytes(step) + above
    return bytes(
        (here - (0, a, b, (a + b) // 2, _paeth(a, b, c))[kind]) & 255
        for here, a, b, c in zip(line, left, above, corner, strict=False)
    )


def _paeth(a: int, b: int, c: int) -> int:
    return min((a, b, c), key=lambda value: abs(a + b - c - value))


def _read(data: bytes) -> Png:
    return read_png(data, lambda _width, _height: None)


@pytest.mark.parametrize(("colour", "depth"), [(0, 8), (0, 16), (2, 8), (2, 16), (4, 8), (6, 8), (6, 16)])
def test_a_channel_is_read_whatever_the_filter(colour: int, depth: int) -> None:
    """Each filter, each place of a channel: of 16 bits the upper byte."""
    wide, channels = depth // 8, _CHANNELS[colour]
    packed = random.Random(colour * depth).randbytes(7 * 10 * channels * wide)
    data = made(7, colour, depth, packed)
    for number in range(channels):
        assert channel(data, _read(data), number) == packed[number * wide :: channels * wide]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_small_pixels_are_unpacked(depth: int) -> None:
    """Several to a byte, the last byte of a row not full."""
    values = [number % (1 << depth) for number in range(5)]
    bits = "".join(format(value, f"0{depth}b") for value in values)
    line = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    data = made(5, 0, depth, line * 6)
    assert channel(data, _read(data), 0) == bytes(values) * 6


def _rgba(alpha: bytes) -> bytes:
    return made(4, 6, 8, b"".join(b"\x10\x20\x30" + bytes((value,)) for value in alpha))


def _pixels(source: Source) -> bytes:
    return channel(source.data, _read(source.data), 0)


def _mask(data: bytes, *, painted: bool = False, inverted: bool = False) -> Source:
    return look_at_mask(Mask(data, painted, inverted), "mask", 10**6)


def test_transparency_is_what_is_drawn_anew_or_what_is_painted() -> None:
    """OpenAI's sense and A1111's are each other's opposite; both can be inverted."""
    drawn = bytes(255 - value for value in ALPHA)
    for painted, inverted in product((False, True), repeat=2):
        found = _pixels(_mask(_rgba(ALPHA), painted=painted, inverted=inverted))
        assert found == (ALPHA if painted != inverted else drawn)


def test_a_palette_has_transparency_too() -> None:
    """Of each colour; those that are not named are opaque."""
    tables = ((b"PLTE", bytes(9)), (b"tRNS", b"\x00\x80"))
    data = made(4, 3, 8, bytes((0, 1, 2, 2)), tables)
    assert _pixels(_mask(data)) == bytes((255, 127, 0, 0))


@pytest.mark.parametrize("data", [write_grey(2, 1, b"\x00\xff"), _rgba(b"\xff" * 8)])
def test_a_mask_without_transparency_is_left_as_it_is(data: bytes) -> None:
    """Its brightness says what is drawn, as the engine reads it."""
    assert _mask(data).data == data


def test_brightness_is_inverted() -> None:
    """Of greys, of colours, and of palettes."""
    assert _pixels(_mask(write_grey(3, 1, b"\x00\x40\xff"), inverted=True)) == b"\xff\xbf\x00"
    assert _pixels(_mask(made(2, 2, 8, b"\xff\xff\xff\x00\x00\x00"), inverted=True)) == b"\x00\xff"
    assert _pixels(_mask(made(8, 0, 1, b"\xaa"), inverted=True)) == b"\x00\xff" * 4
    palette = ((b"PLTE", b"\xff\xff\xff\x00\x00\x00"),)
    assert _pixels(_mask(made(2, 3, 8, b"\x00\x01", palette), inverted=True)) == b"\x00\xff"


@pytest.mark.parametrize(("depth", "packed"), [(1, b"\xa0"), (8, b"\x00\x80\xff\x10")])
def test_a_grey_source_becomes_one_of_colours_without_unpacking_it(depth: int, packed: bytes) -> None:
    """sd-server refuses what has fewer than three channels, and a scan is grey."""
    data = made(4 if depth == 8 else 3, 0, depth, packed)
    found = look_at(data, "image", 10**6)
    assert _read(found.data).colour == 3
    assert dict(chunks(found.data))[b"IDAT"] == dict(chunks(data))[b"IDAT"]
    assert len(_read(found.data).palette) == 3 << depth


def test_greys_that_do_not_fit_a_palette_are_written_anew() -> None:
    """Of 16 bits the upper ones; transparency falls away, as it does with colours."""
    for data in (made(2, 0, 16, b"\x12\x34\xab\xcd"), made(2, 4, 8, b"\x12\x00\xab\xff")):
        found = look_at(data, "image", 10**6)
        assert (_read(found.data).colour, _pixels(found)) == (3, b"\x12\xab")
    coloured = made(1, 2, 8, b"abc")
    assert look_at(coloured, "image", 10**6).data == coloured


def test_what_can_not_be_turned_is_refused() -> None:
    """With why: an unknown filter, and more pixels than are turned here."""
    bad = made(2, 6, 8, bytes(8)).replace(zlib.compress(b"\0" + bytes(8)), zlib.compress(b"\x07" + bytes(8)))
    start = bad.index(b"IDAT")
    end = bad.index(b"IEND") - 8
    bad = bad[:end] + struct.pack(">I", zlib.crc32(bad[start:end])) + bad[end + 4 :]
    with pytest.raises(CallerError, match="damaged"):
        _mask(bad)
    rows = zlib.compress(bytes((4096 * 4 + 1) * 2100))
    wide = written(struct.pack(">IIBBBBB", 4096, 2100, 8, 6, 0, 0, 0), [(b"IDAT", rows)])
    with pytest.raises(CallerError, match="are the most"):
        look_at_mask(Mask(wide), "mask", 10**8)
