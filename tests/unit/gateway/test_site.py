from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.config.schema import ListenConfig
from supervisor.gateway.site import (
    Site,
    cors_headers,
    cross_origin,
    preflight_headers,
    site_of,
    split_authority,
    wrong_host,
)

LOOPBACK = site_of(ListenConfig())


def site(**listen: Any) -> Site:
    """The rules of a `listen` section."""
    return site_of(ListenConfig(**listen))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::1]", "[0:0::1]"])
@pytest.mark.parametrize("port", ["", ":8080", ":1", ":"])
def test_loopback_goes_by_its_own_names(host: str, port: str) -> None:
    """With any port: a container's or a tunnel's may be another one."""
    assert wrong_host(LOOPBACK, [host + port]) is None
    assert wrong_host(site(host="::1"), [host + port]) is None


FOREIGN = ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0:8080"]
BROKEN = ["", ":8080", "localhost:80:80", "localhost@evil", "[::1", "::1", "127.0.0.1, x", " localhost", "x" * 5000]


@pytest.mark.parametrize("host", [*FOREIGN, "10.0.0.1", *BROKEN])
def test_a_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    """DNS rebinding: the browser believes that the page's own server is asked."""
    refusal = wrong_host(LOOPBACK, [host])
    assert refusal is not None
    assert refusal.code == "wrong_host"
    assert "listen.hosts" in refusal.message
    assert len(refusal.message) < 400


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_there_is_one_host(hosts: list[str]) -> None:
    """Every browser sends one; two of them may be read as one or the other."""
    assert wrong_host(LOOPBACK, hosts) is not None


def test_more_names_by_the_config() -> None:
    """Names of a reverse proxy, or of the machine at home; whatever their case and their port."""
    rules = site(hosts=("AI.Home.arpa", "fd00::1"))
    for host in ("ai.home.arpa", "AI.home.ARPA:443", "[FD00:0::1]:8080", "localhost"):
        assert wrong_host(rules, [host]) is None
    assert wrong_host(rules, ["other.home.arpa"]) is not None


def test_a_public_address_looks_at_names_only_if_some_are_listed() -> None:
    """It can be asked by names that nobody listed; with a list, they, its own address and loopback's are good."""
    assert wrong_host(site(host="0.0.0.0"), ["anything.example"]) is None
    listed = site(host="192.168.1.5", hosts=("ai.lan",))
    for host in ("ai.lan:8080", "192.168.1.5:8080", "localhost:8080"):
        assert wrong_host(listed, [host]) is None
    assert wrong_host(listed, ["192.168.1.6"]) is not None
    assert wrong_host(site(host="0.0.0.0", hosts=("ai.lan",)), ["0.0.0.0"]) is not None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({}, True),
        ({"Origin": "http://localhost:8080"}, True),
        ({"Origin": "http://LOCALHOST:8080"}, True),
        ({"Origin": "http://localhost:3000"}, False),
        ({"Origin": "http://localhost"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "https://localhost:8080.evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "file://"}, False),
        ({"Origin": "app://localhost:8080"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": " Cross-Site "}, False),
        ({"Origin": "http://localhost:8080", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "https://chat.example.org"}, True),
        ({"Origin": "https://chat.example.org", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "app://obsidian.md"}, True),
        ({"Origin": "http://chat.example.org"}, False),
        ({"Origin": "https://chat.example.org:444"}, False),
    ],
)
def test_pages_of_others_change_nothing(method: str, headers: dict[str, str], good: bool) -> None:
    """Programs send neither header; browsers send what tells our own page from another's; named ones may."""
    rules = site(cors_origins=("https://Chat.example.org:443", "app://obsidian.md"))
    refusal = cross_origin(rules, method, {"Host": "localhost:8080", **headers})
    assert (refusal is None) == good
    if refusal is not None:
        assert refusal.code == "cross_origin"
        assert "listen.cors_origins" in refusal.message


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_what_changes_nothing_may_be_asked_by_any_page(method: str) -> None:
    """It can't read the answer: that needs CORS headers."""
    assert cross_origin(LOOPBACK, method, {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}) is None


@pytest.mark.parametrize(
    ("origin", "host", "good"),
    [
        ("https://ai.example.org", "ai.example.org", True),
        ("https://ai.example.org", "ai.example.org:443", True),
        ("http://ai.example.org", "ai.example.org:80", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://ai.example.org", "127.0.0.1:8080", False),
        ("http://ai.example.org", "ai.example.org:443", False),
        ("https://ai.example.org", "", False),
    ],
)
def test_our_own_page_is_known_by_the_host_that_it_asks(origin: str, host: str, good: bool) -> None:
    """Also behind a proxy that ends TLS, if it passes the host on."""
    assert (cross_origin(LOOPBACK, "POST", {"Origin": origin, "Host": host}) is None) == good


def test_only_named_pages_read_answers() -> None:
    """And never with a star; without a list there is no CORS at all."""
    rules = site(cors_origins=("https://chat.example.org",))
    headers = cors_headers(rules, "https://chat.example.org")
    assert headers["Access-Control-Allow-Origin"] == "https://chat.example.org"
    assert headers["Vary"] == "Origin"
    assert "x-request-id" in headers["Access-Control-Expose-Headers"]
    for origin in ("https://evil.example", "null", "", None):
        assert cors_headers(rules, origin) == {}
    assert cors_headers(LOOPBACK, "https://chat.example.org") == {}


def test_a_preflight_is_answered_for_named_pages() -> None:
    """With the headers that it asks for; a header that is none is left out, and another OPTIONS is no preflight."""
    rules = site(cors_origins=("https://chat.example.org",))
    asks = {
        "Origin": "https://chat.example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = preflight_headers(rules, "OPTIONS", asks)
    assert answer is not None
    assert answer["Access-Control-Allow-Headers"] == "authorization, content-type"
    assert answer["Access-Control-Allow-Private-Network"] == "true"
    assert "POST" in answer["Access-Control-Allow-Methods"]
    odd = preflight_headers(rules, "OPTIONS", asks | {"Access-Control-Request-Headers": "a\r\nSet-Cookie: b"})
    assert odd is not None
    assert "Access-Control-Allow-Headers" not in odd
    assert preflight_headers(rules, "POST", asks) is None
    assert preflight_headers(rules, "OPTIONS", asks | {"Origin": "https://evil.example"}) is None
    assert preflight_headers(rules, "OPTIONS", {"Origin": "https://chat.example.org"}) is None
    assert preflight_headers(LOOPBACK, "OPTIONS", asks) is None


@given(st.text())
@example("[" * 5000)
@example("localhost:" + "9" * 5000)
@example("a" * 100_000 + "@")
@example("[fe80::1%eth0]:80")
@example(".")
@example("١٢٧.0.0.1:٨٠")
def test_any_host_can_be_read(text: str) -> None:
    """No exception, and never a name with something left on it that would make it another one."""
    split = split_authority(text)
    if split is not None:
        name, port = split
        assert name
        assert name == name.lower()
        assert not set(name) & set("@/[]?# \t\r\n,")
        assert port is None or 0 <= port < 100_000


@given(st.sampled_from(["localhost", "127.0.0.1", "[::1]", "ai.lan"]), st.text(min_size=1))
def test_nothing_can_be_hung_on_a_good_name(name: str, tail: str) -> None:
    """A good name with more behind it is only good if that is a port or the dot that ends a name."""
    refusal = wrong_host(site(hosts=("ai.lan",)), [name + tail])
    rest = tail.removeprefix(".") if not name.endswith("]") else tail
    is_port = rest == "" or (rest[0] == ":" and all(c in "0123456789" for c in rest[1:]) and len(rest) <= 6)
    assert (refusal is None) == is_port
