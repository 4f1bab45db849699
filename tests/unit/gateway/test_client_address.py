from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.client_address import Network, client_address

PROXIES: tuple[Network, ...] = tuple(map(ipaddress.ip_network, ("127.0.0.1/32", "10.0.0.0/24", "fd00::/8")))


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7, 10.0.0.5"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7", "10.0.0.5"], "203.0.113.7"),
        ("127.0.0.1", ["10.0.0.9, 10.0.0.5"], "10.0.0.9"),
        ("127.0.0.1", ["203.0.113.7:5123"], "203.0.113.7"),
        ("127.0.0.1", ["[2001:db8::1]:5123"], "2001:db8::1"),
        ("127.0.0.1", ["2001:DB8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.5", ["203.0.113.7"], "203.0.113.7"),
        ("fd12::1", ["203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7, unknown"], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.7, "], "127.0.0.1"),
        ("127.0.0.1", ["<script>, 10.0.0.5"], "10.0.0.5"),
        (None, ["203.0.113.7"], "local"),
    ],
)
def test_only_trusted_machines_are_believed(peer: str | None, forwarded: list[str], address: str) -> None:
    """From the right, as long as the one who says it is a proxy of ours; what a client made up is further left."""
    assert client_address(peer, forwarded, PROXIES) == address


def test_without_proxies_the_header_means_nothing() -> None:
    """Else anybody could choose an address, and a share of the queue with it."""
    assert client_address("127.0.0.1", ["203.0.113.7"], ()) == "127.0.0.1"


ADDRESS = st.one_of(st.ip_addresses().map(str), st.text(max_size=20))


@given(ADDRESS, st.lists(st.lists(ADDRESS, max_size=20).map(",".join), max_size=4))
def test_any_header_gives_the_peer_or_an_address(peer: str, forwarded: list[str]) -> None:
    """What comes out ends in logs and in the queue: never what somebody wrote, unless it is an address."""
    found = client_address(peer, forwarded, PROXIES)
    assert found == (peer or "local") or str(ipaddress.ip_address(found)) == found
