"""Slows down who guesses tokens. Only their answers wait: a good token is never delayed, whoever else is there."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from supervisor.clock import Clock

# Seconds.
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0
_FORGET_AFTER = 60.0
_MOST_DOUBLINGS = 16
# One customer of a provider has this much of IPv6 to change addresses in.
_IPV6_NETWORK_BITS = 64


class FailedAttempts:
    """Counts wrong tokens by address; holds ``limit`` addresses, and forgets the one that was seen longest ago."""

    def __init__(self, clock: Clock, limit: int = 1024) -> None:
        self._clock = clock
        self._limit = limit
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        """Addresses that are remembered."""
        return len(self._seen)

    def count(self, address: str) -> float:
        """Count a wrong token, and give the seconds that its answer is to wait: twice as long each time, up to 2 s.

        A right token from there does not start it anew: behind one address there may be both.
        """
        key, now = _network_of(address), self._clock.monotonic()
        failures, last = self._seen.pop(key, (0, now))
        if now - last > _FORGET_AFTER:
            failures = 0
        self._seen[key] = (min(failures + 1, _MOST_DOUBLINGS), now)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return float(min(_LONGEST_DELAY, _FIRST_DELAY * 2**failures))


def _network_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:  # noqa: PLR2004  the Internet Protocol's own number
        return address
    return str(ipaddress.ip_network((found, _IPV6_NETWORK_BITS), strict=False))
