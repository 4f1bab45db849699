from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.http_answer import MAX_HEAD_BYTES, GarbledError, HttpAnswer

OK = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

# What an engine may send, and the status and body that it means.
GOOD = {
    "a length": (OK + b"Content-Length: 5\r\n\r\nhello", 200, b"hello"),
    "no body": (OK + b"Content-Length: 0\r\n\r\n", 200, b""),
    "without a body by its status": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "chunks": (CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, b"hello"),
    "line ends inside a chunk": (CHUNKED + b"6\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", 200, b"\r\n\r\n\r\n"),
    "a chunk of 16 bytes, its size in capitals": (CHUNKED + b"1A\r\n" + b"x" * 26 + b"\r\n0\r\n\r\n", 200, b"x" * 26),
    "an extension and a trailer": (CHUNKED + b"1 ;a=b\r\nx\r\n0\r\nX-Y: z\r\n\r\n", 200, b"x"),
    "more than the answer": (OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", 200, b"ok"),
    "a word before": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", 200, b"x"),
    "until the end": (b"HTTP/1.0 500 Oh\r\n\r\nto the end", 500, b"to the end"),
    "no words for the status": (b"HTTP/1.1 404\r\ncontent-LENGTH:  2 \r\n\r\nno", 404, b"no"),
}
BAD = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "a header without a colon": OK + b"nonsense\r\n\r\n",
    "a folded header": OK + b"A: b\r\n c: d\r\n\r\n",
    "a negative length": OK + b"Content-Length: -1\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a length in other digits": OK + "Content-Length: ٣\r\n\r\n".encode(),
    "compressed": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "a chunk without a size": CHUNKED + b"zz\r\n",
    "a chunk with a sign": CHUNKED + b"+3\r\nabc\r\n",
    "a chunk that is too long": CHUNKED + b"1\r\nab\r\n",
    "a size line without an end": CHUNKED + b"1;" + b"x" * 2000,
    "a head without an end": OK + b"A: " + b"x" * (MAX_HEAD_BYTES + 10),
    "a chunk of more than memory": CHUNKED + b"1" * 20 + b"\r\n",
}


def _read(pieces: list[bytes]) -> tuple[int | None, bytes, bool]:
    answer = HttpAnswer()
    body = b"".join(map(answer.feed, pieces))
    return answer.status, body, answer.end()


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_understood(name: str) -> None:
    """Status and body come out, in one piece or byte by byte."""
    data, status, body = GOOD[name]
    assert _read([data]) == (status, body, True)
    assert _read([bytes([byte]) for byte in data]) == (status, body, True)


@given(st.sampled_from(sorted(GOOD)), st.lists(st.integers(0, 200)))
def test_the_pieces_of_an_answer_do_not_matter(name: str, places: list[int]) -> None:
    """However the network cuts it, the same answer comes out."""
    data, status, body = GOOD[name]
    assert _read(_cut(data, places)) == (status, body, True)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(0, 1000)))
def test_any_chunks_give_the_body(chunks: list[bytes], places: list[int]) -> None:
    """Whatever bytes are in the chunks and wherever they are cut."""
    data = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    assert _read(_cut(data, places)) == (200, b"".join(chunks), True)


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_said_so(name: str) -> None:
    """In one piece and byte by byte."""
    for pieces in ([BAD[name]], [bytes([byte]) for byte in BAD[name]]):
        with pytest.raises(GarbledError):
            _read(pieces)


@given(st.lists(st.binary(max_size=100)), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", OK, CHUNKED]))
def test_no_bytes_are_anything_but_an_answer_or_garbled(pieces: list[bytes], start: bytes) -> None:
    """Prevents: an engine's garbage raised IndexError or the like in the daemon."""
    with contextlib.suppress(GarbledError):
        _read([start, *pieces])


@given(st.sampled_from(sorted(set(GOOD) - {"until the end", "more than the answer"})), st.data())
def test_an_answer_that_is_cut_is_not_complete(name: str, data: st.DataObject) -> None:
    """At no place before its end does a cut pass for the end."""
    whole, _, _ = GOOD[name]
    place = data.draw(st.integers(0, len(whole) - 1))
    assert not _read([whole[:place]])[2]
