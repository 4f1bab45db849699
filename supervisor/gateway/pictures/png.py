"""PNG as far as it is needed without a library: looked at, one channel of its pixels read, grey ones written. Pure.

Filters work on bytes that are a pixel apart, so that one channel can be read without the others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
GREY, PALETTE = 0, 3
_WITH_ALPHA = frozenset({4, 6})
_PIECE = 2**20
_BYTE = 8


class BrokenPictureError(ValueError):
    """What is wrong with a picture."""


@dataclass(frozen=True, slots=True)
class Png:
    """What a PNG says of itself.

    Attributes:
        depth: bits of a channel.
        colour: the format's own number for the kind of colours.
        palette: three bytes a colour, where pixels are numbers of colours.
        opacity: of each colour of the palette, in order; None: all are opaque.
    """

    width: int
    height: int
    depth: int
    colour: int
    interlaced: bool
    palette: bytes = b""
    opacity: bytes | None = None

    @property
    def channels(self) -> int:
        """Numbers of one pixel."""
        return _CHANNELS[self.colour]

    @property
    def line_bytes(self) -> int:
        """Of one row, without its filter."""
        return (self.width * self.channels * self.depth + _BYTE - 1) // _BYTE

    @property
    def has_alpha(self) -> bool:
        """Whether pixels can be transparent."""
        return self.colour in _WITH_ALPHA or (self.colour == PALETTE and self.opacity is not None)


def read_png(data: bytes, check_size: Callable[[int, int], None]) -> Png:
    """A PNG that is whole: all pixels are there, and no more than its header says.

    Raises:
        BrokenPictureError: it is not, or ``check_size`` raised it.
        struct.error: it is cut short.
    """
    found = chunks(data)
    name, head = next(found, (b"", b""))
    if name != b"IHDR" or len(head) != 13:  # noqa: PLR2004  the format's own
        raise BrokenPictureError("it has no header")
    width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", head)
    check_size(width, height)
    if colour not in _CHANNELS or depth not in {1, 2, 4, 8, 16}:
        raise BrokenPictureError("its header says a kind of colours that there isn't")
    said = Png(width, height, depth, colour, bool(interlaced))
    rows = height * (1 + said.line_bytes)
    tables: dict[bytes, bytes] = {}
    # An interlaced picture has rows of its own for each of seven passes.
    _count(found, rows if not interlaced else None, rows + 16 * (height + 8) * 2, tables)
    opacity = tables.get(b"tRNS") if colour == PALETTE else None
    return Png(width, height, depth, colour, bool(interlaced), tables.get(b"PLTE", b""), opacity)


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and bodies, to the end.

    Raises:
        BrokenPictureError: a checksum does not hold, or the end is missing.
        struct.error: a chunk is cut short.
    """
    at = len(SIGNATURE)
    while at < len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(name + body) != check:
            raise BrokenPictureError("it is damaged: a checksum does not hold")
        yield name, body
        if name == b"IEND":
            return
        at += 12 + length
    raise BrokenPictureError("it is cut short")


def _count(found: Iterator[tuple[bytes, bytes]], exact: int | None, most: int, tables: dict[bytes, bytes]) -> None:
    """All pixels are there, and no more than the header says: what inflates to gigabytes is not inflated."""
    inflater, size = zlib.decompressobj(), 0
    for name, body in found:
        if name != b"IDAT":
            if name in {b"PLTE", b"tRNS"}:
                tables[name] = body
            continue
        for piece in _inflated(inflater, body):
            size += len(piece)
            if size > most:
                raise BrokenPictureError("it holds more pixels than its header says")
    if (exact is not None and size < exact) or not size:
        raise BrokenPictureError("pixels are missing")


def _inflated(inflater: zlib._Decompress, body: bytes) -> Iterator[bytes]:
    rest = body
    while rest and not inflater.eof:
        try:
            piece = inflater.decompress(rest, _PIECE)
        except zlib.error as error:
            raise BrokenPictureError("its pixels are damaged") from error
        rest = inflater.unconsumed_tail
        yield piece


def channel(data: bytes, png: Png, number: int) -> bytes:
    """One channel, row by row, a byte for each pixel: of 16 bits the upper ones; of fewer than 8 what is stored.

    Raises:
        BrokenPictureError: a row has no filter that there is.
    """
    wide = png.depth >= _BYTE
    step = png.channels * png.depth // _BYTE if wide else 1
    first = 1 + (number * png.depth // _BYTE if wide else 0)
    above = bytes(png.width if wide else png.line_bytes)
    rows = []
    for line in _lines(data, png):
        above = _unfiltered(line[0], line[first::step], above)
        rows.append(above if wide else _spread(above, png.depth, png.width))
    return b"".join(rows)


def _lines(data: bytes, png: Png) -> Iterator[bytes]:
    inflater, held, length, left = zlib.decompressobj(), bytearray(), png.line_bytes + 1, png.height
    for name, body in chunks(data):
        for piece in _inflated(inflater, body) if name == b"IDAT" else ():
            held += piece
            whole = min(left, len(held) // length)
            for number in range(whole):
                yield bytes(held[number * length : (number + 1) * length])
            del held[: whole * length]
            left -= whole


def _unfiltered(kind: int, line: bytes, above: bytes) -> bytes:
    if kind == 0:
        return line
    if kind == 1:
        summed: Iterator[int] = accumulate(line, _added)
        return bytes(summed)
    if kind == 2:  # noqa: PLR2004  the format's own
        return above if not any(line) else bytes((here + over) & 255 for here, over in zip(line, above, strict=True))
    if kind == 3:  # noqa: PLR2004  the format's own
        return _averaged(line, above)
    if kind == 4:  # noqa: PLR2004  the format's own
        return _predicted(line, above)
    raise BrokenPictureError("its pixels are damaged")


def _added(left: int, here: int) -> int:
    return (left + here) & 255


def _averaged(line: bytes, above: bytes) -> bytes:
    made, left = bytearray(), 0
    for here, over in zip(line, above, strict=True):
        left = (here + (left + over) // 2) & 255
        made.append(left)
    return bytes(made)


def _predicted(line: bytes, above: bytes) -> bytes:
    """Paeth's: from the one of three neighbours that is nearest to left + above - corner."""
    made, left, corner = bytearray(), 0, 0
    for here, over in zip(line, above, strict=True):
        to_left, to_over = abs(over - corner), abs(left - corner)
        to_corner = abs(left + over - 2 * corner)
        if to_left <= to_over and to_left <= to_corner:
            near = left
        elif to_over <= to_corner:
            near = over
        else:
            near = corner
        left, corner = (here + near) & 255, over
        made.append(left)
    return bytes(made)


def _spread(packed: bytes, depth: int, width: int) -> bytes:
    mask = (1 << depth) - 1
    shifts = range(_BYTE - depth, -1, -depth)
    return bytes((byte >> shift) & mask for byte in packed for shift in shifts)[:width]


def write_grey(width: int, height: int, pixels: bytes, *, as_colours: bool = False) -> bytes:
    """A grey PNG of a byte a pixel; ``as_colours``: as a palette of greys, for readers that want colours."""
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    kind = PALETTE if as_colours else GREY
    tables = [(b"PLTE", greys(_BYTE))] if as_colours else []
    return written(
        struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0), [*tables, (b"IDAT", zlib.compress(rows, 1))]
    )


def greys(depth: int) -> bytes:
    """A palette of the greys that so many bits tell apart, up to 8."""
    most = (1 << depth) - 1
    return bytes(value * 255 // most for value in range(most + 1) for _ in range(3))


def written(head: bytes, parts: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG of this header and these chunks."""
    whole = [(b"IHDR", head), *parts, (b"IEND", b"")]
    made = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in whole
    )
    return SIGNATURE + b"".join(made)
