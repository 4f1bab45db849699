"""Where a request comes from, also behind a reverse proxy. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Nobody has more proxies in a row; the rest of a longer list isn't looked at.
_MOST_HOPS = 16


def client_address(peer: str | None, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """The address that the last trusted machine in the row was asked from.

    ``peer`` is the connection's other end, None for a Unix socket; ``forwarded`` are the X-Forwarded-For headers in
    order. Each proxy adds whom it was asked by at the end, so they are read from there, for as long as the one who
    says it is in ``proxies``; what is further left anyone may have made up.
    """
    at = peer or "local"
    if not proxies or not forwarded:
        return at
    hops = [hop for header in forwarded for hop in header.split(",")]
    for hop in reversed(hops[-_MOST_HOPS:]):
        here = _address(at)
        if here is None or not any(here in network for network in proxies):
            break
        before = _address(_without_port(hop.strip()))
        if before is None:
            break
        at = str(before)
    return at


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A socket for both versions shows IPv4 as ::ffff:10.0.0.1.
    return getattr(found, "ipv4_mapped", None) or found


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
