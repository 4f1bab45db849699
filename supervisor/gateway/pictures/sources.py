"""Source pictures: looked at before an engine sees them. Pure.

An engine decodes whatever it is given, into three bytes a pixel. So a picture's header must say a size that is allowed,
and the rest must be there and no longer than the header says; what a decoder would still stumble over is refused by the
engine itself.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass

from supervisor.errors import CallerError

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_SIZE_MARKERS = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_BARE_MARKERS = frozenset((0x01, *range(0xD0, 0xD9)))
_SMALLEST_EDGE = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A picture that was looked at."""

    data: bytes
    width: int
    height: int


class _BrokenError(ValueError):
    """What is wrong with a picture."""


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
    """A PNG or a JPEG whose size is allowed and that is whole.

    Raises:
        CallerError: ``image_undecodable``, with which one and why.
    """
    try:
        width, height = _size_of(data, most_pixels)
    except _BrokenError as error:
        raise _undecodable(where, str(error)) from error
    except (struct.error, IndexError) as error:
        raise _undecodable(where, "it is cut short") from error
    return Source(data, width, height)


def _size_of(data: bytes, most_pixels: int) -> tuple[int, int]:
    if data.startswith(_PNG):
        return _png(data, most_pixels)
    if not data.startswith(_JPEG):
        raise _BrokenError("it is neither PNG nor JPEG")
    width, height = _jpeg(data)
    _check_size(width, height, most_pixels)
    return width, height


def _undecodable(where: str, why: str) -> CallerError:
    return CallerError(
        "image_undecodable", f"`{where}` can't be used as a picture: {why}. Send a PNG or a JPEG.", param=where
    )


def _check_size(width: int, height: int, most_pixels: int) -> None:
    if width < _SMALLEST_EDGE or height < _SMALLEST_EDGE:
        raise _BrokenError(f"its header says {width}x{height}")
    if width * height > most_pixels:
        raise _BrokenError(f"its header says {width}x{height}, and pictures.max_source_pixels allows {most_pixels}")


def _png(data: bytes, most_pixels: int) -> tuple[int, int]:
    chunks = _png_chunks(data)
    name, head = next(chunks, (b"", b""))
    if name != b"IHDR" or len(head) != 13:  # noqa: PLR2004  the format's own
        raise _BrokenError("it has no header")
    width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", head)
    _check_size(width, height, most_pixels)
    channels = _PNG_CHANNELS.get(colour)
    if channels is None or depth not in {1, 2, 4, 8, 16}:
        raise _BrokenError("its header says a kind of colours that there isn't")
    rows = height * (1 + (width * channels * depth + 7) // 8)
    # An interlaced picture has rows of its own for each of seven passes.
    _inflate(chunks, rows if not interlaced else None, rows + 16 * (height + 8) * 2)
    return width, height


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_PNG)
    while at < len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(name + body) != check:
            raise _BrokenError("it is damaged: a checksum does not hold")
        yield name, body
        if name == b"IEND":
            return
        at += 12 + length
    raise _BrokenError("it is cut short")


def _inflate(chunks: Iterator[tuple[bytes, bytes]], exact: int | None, most: int) -> None:
    """All pixels are there, and no more than the header says: what inflates to gigabytes is not inflated."""
    inflater, size = zlib.decompressobj(), 0
    for name, body in chunks:
        if name != b"IDAT":
            continue
        rest = body
        while rest and not inflater.eof:
            try:
                size += len(inflater.decompress(rest, 2**20))
            except zlib.error as error:
                raise _BrokenError("its pixels are damaged") from error
            rest = inflater.unconsumed_tail
            if size > most:
                raise _BrokenError("it holds more pixels than its header says")
    if (exact is not None and size < exact) or not size:
        raise _BrokenError("pixels are missing")


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while at < len(data):
        if data[at] != 0xFF:  # noqa: PLR2004  how a marker begins
            raise _BrokenError("it is damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # noqa: PLR2004  padding
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        elif marker in _SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            if b"\xff\xd9" not in data[at:]:
                raise _BrokenError("it is cut short")
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + max(2, length)
    raise _BrokenError("it has no header")
