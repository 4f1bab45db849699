"""One HTTP/1.1 answer, read from bytes as they come. Pure; only what is needed to understand an engine.

aiohttp's own client costs four times as much CPU for a request, most of it for what an engine on a Unix socket never
needs: pools, cookies, redirects, proxies, compression.
"""

from __future__ import annotations

import re

MAX_HEAD_BYTES = 64 * 2**10
# A size in hexadecimal, and an extension that nobody sends.
_MAX_SIZE_LINE = 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_INFORMATIONAL = range(100, 200)
_NO_BODY = frozenset({204, 304})
_CRLF = b"\r\n"
_KEEPS = b"HTTP/1.1"
_HEAD_END = _CRLF * 2


class GarbledError(ValueError):
    """What came is no HTTP answer."""


class HttpAnswer:
    """An answer that grows.

    Attributes:
        status: None until the head is complete.
        done: the body is complete; what comes later is ignored.
        keeps: the engine goes on to listen on this connection, as far as its answer says.
    """

    __slots__ = ("_chunked", "_held", "_left", "_trailer", "done", "keeps", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.done = False
        self.keeps = False
        self._held = b""
        self._chunked = False
        # Bytes of the body, or of the chunk and its line end, that are still to come; None: until the connection ends.
        self._left: int | None = 0
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """The part of the body that ``data`` brings; empty when it brings none.

        Raises:
            GarbledError: it is no HTTP answer.
        """
        if self.status is None:
            data = self._read_head(data)
            if self.status is None:
                return b""
        if self.done or not data:
            self.keeps = self.keeps and not data  # nothing was asked that more could answer
            return b""
        return self._read_chunks(data) if self._chunked else self._read_plain(data)

    def end(self) -> bool:
        """The connection has ended: whether the answer is complete."""
        if self.status is not None and self._left is None:
            self.done = True
        return self.done

    def _read_head(self, data: bytes) -> bytes:
        """Take the head, when it is complete; what follows it."""
        data = self._held + data
        while (end := data.find(_HEAD_END)) >= 0:
            if end > MAX_HEAD_BYTES:
                break
            status = self._understand(data[:end])
            data = data[end + len(_HEAD_END) :]
            if status not in _INFORMATIONAL:
                self._held = b""
                self.status = status
                return data
        if len(data) >= MAX_HEAD_BYTES + len(_HEAD_END) or not b"HTTP/1.".startswith(data[:7]):
            raise GarbledError("no head of an HTTP answer")
        self._held = data
        return b""

    def _understand(self, head: bytes) -> int:
        first, *lines = head.split(_CRLF)
        matched = _STATUS_LINE.fullmatch(first)
        if matched is None:
            raise GarbledError("no status line")
        status = int(matched[1])
        length: int | None = None
        chunked = closes = False
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name[-1:].isspace() or name[:1].isspace():
                raise GarbledError("a header without a name")
            name = name.lower()
            if name == b"content-length":
                length = _length(value, length)
            elif name == b"transfer-encoding":
                chunked = _is_chunked(value)
            elif name == b"connection":
                closes = value.strip(b" \t").lower() != b"keep-alive"
        self._chunked = chunked
        self.keeps = not closes and first.startswith(_KEEPS) and (chunked or length is not None)
        self._left = 0 if chunked else length
        self.done = status in _NO_BODY or (length == 0 and not chunked)
        return status

    def _read_plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        if len(data) > self._left:
            self.keeps = False
            data = data[: self._left]
        self._left -= len(data)
        self.done = not self._left
        return data

    def _read_chunks(self, data: bytes) -> bytes:
        """``_left`` counts a chunk's line end too: the last two bytes of what is left are no body."""
        assert self._left is not None
        if self._held:
            data, self._held = self._held + data, b""
        body: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                at = self._take_chunk(data, at, body)
                continue
            end = data.find(_CRLF, at, at + _MAX_SIZE_LINE)
            if end < 0:
                self._hold(data[at:])
                break
            line, at = data[at:end], end + 2
            if self._trailer:
                if not line:
                    self.done = True
                    self.keeps = self.keeps and at == len(data)
                    break
            elif size := _size(line):
                self._left = size + 2
            else:
                self._trailer = True
        return body[0] if len(body) == 1 else b"".join(body)

    def _take_chunk(self, data: bytes, at: int, body: list[bytes]) -> int:
        assert self._left is not None
        end = min(len(data), at + self._left - 2)
        if end > at:
            body.append(data[at:end])
            self._left -= end - at
            at = end
        # The line end may come in two pieces.
        while self._left <= 2 and self._left and at < len(data):  # noqa: PLR2004  length of a line end
            if data[at] != _CRLF[-self._left]:
                raise GarbledError("a chunk is longer than it says")
            self._left -= 1
            at += 1
        return at

    def _hold(self, rest: bytes) -> None:
        if len(rest) >= _MAX_SIZE_LINE:
            raise GarbledError("a chunk without a size")
        self._held = rest


def _length(value: bytes, before: int | None) -> int:
    text = value.strip(b" \t")
    if not _LENGTH.fullmatch(text) or (before is not None and before != int(text)):
        raise GarbledError("a length that is none")
    return int(text)


def _is_chunked(value: bytes) -> bool:
    if value.strip(b" \t").lower() != b"chunked":
        raise GarbledError("a transfer encoding that was not asked for")
    return True


def _size(line: bytes) -> int:
    matched = _SIZE_LINE.fullmatch(line)
    if matched is None:
        raise GarbledError("a chunk without a size")
    return int(matched[1], 16)
