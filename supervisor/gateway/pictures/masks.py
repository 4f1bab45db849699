"""What a mask means, and sources made so that an engine reads them. Pure.

OpenAI's clients mark by transparency what is to be drawn anew, A1111's by what is painted, or by brightness.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from supervisor.gateway.pictures.png import (
    GREY,
    BrokenPictureError,
    Png,
    channel,
    chunks,
    greys,
    write_grey,
    written,
)

# Pixels are turned over one by one here, at three million a second.
_MOST_TURNED = 8 * 2**20
_NEGATIVE = bytes(range(255, -1, -1))
_OPAQUE = 255
_GREY_ALPHA = 4
_BYTE = 8


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask as it was sent.

    Attributes:
        painted: what is not transparent is drawn anew, as in A1111's API; else what is transparent, as in OpenAI's.
        inverted: the other way round.
    """

    data: bytes
    painted: bool = False
    inverted: bool = False


def white_where_drawn(mask: Mask, png: Png | None) -> bytes:
    """The mask as engines take it: white is drawn anew. Without transparency in it, its brightness says so already.

    Args:
        mask: as sent.
        png: what was read of it; None: it is a JPEG.

    Raises:
        BrokenPictureError: it can't be turned into that here.
    """
    values = None if png is None or not png.has_alpha else _alpha(mask.data, png)
    if values is not None and values.count(_OPAQUE) == len(values):
        values = None
    if values is not None and not mask.painted:
        values = values.translate(_NEGATIVE)
    if values is None:
        if not mask.inverted:
            return mask.data
        if png is None:
            raise BrokenPictureError("a JPEG can't be inverted here")
        values = _brightness(mask.data, png)
    if png is None:
        raise AssertionError("what has transparency is a PNG")
    return write_grey(png.width, png.height, values.translate(_NEGATIVE) if mask.inverted else values)


def in_colours(data: bytes, png: Png) -> bytes:
    """A grey picture as one of colours: sd-server refuses sources of fewer than three channels.

    Raises:
        BrokenPictureError: it can't be turned into that here.
    """
    if png.colour == GREY and png.depth <= _BYTE:
        # The same pixels, as numbers of a palette of greys: nothing is unpacked.
        interlaced = int(png.interlaced)
        head = struct.pack(">IIBBBBB", png.width, png.height, png.depth, 3, 0, 0, interlaced)
        pixels = [(name, body) for name, body in chunks(data) if name == b"IDAT"]
        return written(head, [(b"PLTE", greys(png.depth)), *pixels])
    if png.colour not in {GREY, _GREY_ALPHA}:
        return data
    return write_grey(png.width, png.height, _turned(data, png, 0), as_colours=True)


def _turned(data: bytes, png: Png, number: int) -> bytes:
    if png.interlaced:
        raise BrokenPictureError(
            "it is interlaced, with a transparency or a grey that must be turned over: save it without"
        )
    if png.width * png.height > _MOST_TURNED:
        raise BrokenPictureError(
            f"its transparency or grey must be turned over, and {_MOST_TURNED} pixels are the most"
        )
    return channel(data, png, number)


def _alpha(data: bytes, png: Png) -> bytes:
    if png.opacity is None:
        return _turned(data, png, png.channels - 1)
    table = png.opacity[:256].ljust(256, b"\xff")
    return _turned(data, png, 0).translate(table)


def _brightness(data: bytes, png: Png) -> bytes:
    if png.colour in {GREY, _GREY_ALPHA}:
        values = _turned(data, png, 0)
        return values if png.depth >= _BYTE else values.translate(greys(png.depth)[::3].ljust(256, b"\xff"))
    if png.palette:
        colours = [png.palette[at : at + 3].ljust(3, b"\0") for at in range(0, min(len(png.palette), 768), 3)]
        table = bytes(_luma(*colour) for colour in colours)
        return _turned(data, png, 0).translate(table.ljust(256, b"\0"))
    planes = (_turned(data, png, number) for number in range(3))
    return bytes(map(_luma, *planes))


def _luma(red: int, green: int, blue: int) -> int:
    return (red * 77 + green * 150 + blue * 29) >> 8
