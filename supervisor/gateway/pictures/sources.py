"""Source pictures: looked at before an engine sees them. Pure.

An engine decodes whatever it is given, into three bytes a pixel. So a picture's header must say a size that is allowed,
and the rest must be there and no longer than the header says; what a decoder would still stumble over is refused by the
engine itself.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import dataclass

from supervisor.errors import CallerError
from supervisor.gateway.pictures.masks import Mask, in_colours, white_where_drawn
from supervisor.gateway.pictures.png import SIGNATURE, BrokenPictureError, Png, read_png

_JPEG = b"\xff\xd8\xff"
_SIZE_MARKERS = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))
_SMALLEST_EDGE = 1
# What people send besides, by how it begins; sd-server is built without WebP, and no build has the others.
_OTHERS = (
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"<svg", "SVG"),
    (b"<?xml", "SVG"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A picture that was looked at."""

    data: bytes
    width: int
    height: int


def decode_text(text: str, where: str) -> bytes:
    """The bytes of a ``data:`` URL, or of bare base64.

    Raises:
        CallerError: ``image_undecodable``, ``url_refused``.
    """
    head, comma, rest = text.partition(",")
    if text[:5].lower() == "data:":
        if not comma or not head.lower().endswith(";base64"):
            raise _undecodable(where, "its data: URL is not in base64")
        text = rest
    elif "://" in text[:64]:
        raise CallerError(
            "url_refused", f"`{where}` is a URL, and nothing is fetched here. Send the picture itself.", param=where
        )
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise _undecodable(where, "it is not base64") from error


def look_at(data: bytes, where: str, most_pixels: int) -> Source:
    """A PNG or a JPEG whose size is allowed and that is whole, made so that an engine reads it.

    Raises:
        CallerError: ``image_undecodable``, with which one and why.
    """
    try:
        width, height, png, grey = _looked_at(data, most_pixels)
        data = data if png is None else in_colours(data, png)
    except BrokenPictureError as error:
        raise _undecodable(where, str(error)) from error
    except (struct.error, IndexError) as error:
        raise _undecodable(where, "it is cut short") from error
    if grey:
        raise _undecodable(where, "it is a grey JPEG, and engines read colours alone")
    return Source(data, width, height)


def look_at_mask(mask: Mask, where: str, most_pixels: int) -> Source:
    """The same of a mask; ``data`` is then what an engine takes for one.

    Raises:
        CallerError: ``image_undecodable``.
    """
    try:
        width, height, png, _ = _looked_at(mask.data, most_pixels)
        return Source(white_where_drawn(mask, png), width, height)
    except BrokenPictureError as error:
        raise _undecodable(where, str(error)) from error
    except (struct.error, IndexError) as error:
        raise _undecodable(where, "it is cut short") from error


def _looked_at(data: bytes, most_pixels: int) -> tuple[int, int, Png | None, bool]:
    """Width, height, what a PNG says of itself, and whether a JPEG is grey."""

    def check(width: int, height: int) -> None:
        if width < _SMALLEST_EDGE or height < _SMALLEST_EDGE:
            raise BrokenPictureError(f"its header says {width}x{height}")
        if width * height > most_pixels:
            said = f"its header says {width}x{height}, and pictures.max_source_pixels allows {most_pixels}"
            raise BrokenPictureError(said)

    if data.startswith(SIGNATURE):
        png = read_png(data, check)
        return png.width, png.height, png, False
    if not data.startswith(_JPEG):
        raise BrokenPictureError(_other(data))
    width, height, components = _jpeg(data)
    check(width, height)
    return width, height, None, components == 1


def _other(data: bytes) -> str:
    if not data:
        return "it is empty"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "it is a WebP, which is not read here"
    if data[4:8] == b"ftyp":
        return "it is an AVIF, a HEIC or a video, which are not read here"
    name = next((name for begins, name in _OTHERS if data.lstrip().startswith(begins)), None)
    return "it is neither PNG nor JPEG" if name is None else f"it is a {name}, which is not read here"


def _undecodable(where: str, why: str) -> CallerError:
    return CallerError(
        "image_undecodable", f"`{where}` can't be used as a picture: {why}. Send a PNG or a JPEG.", param=where
    )


def _jpeg(data: bytes) -> tuple[int, int, int]:
    """Width, height, and how many components a pixel has."""
    at = 2
    while at < len(data):
        if data[at] != 0xFF:  # noqa: PLR2004  how a marker begins
            raise BrokenPictureError("it is damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # noqa: PLR2004  padding
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        elif marker in _SIZE_MARKERS:
            height, width, components = struct.unpack_from(">HHB", data, at + 5)
            if b"\xff\xd9" not in data[at:]:
                raise BrokenPictureError("it is cut short")
            return width, height, components
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + max(2, length)
    raise BrokenPictureError("it has no header")
