"""What the address is called, and which pages in browsers may use it. Pure.

A browser sends what any page asks it to, also to this machine and to the network at home. Two checks stop pages that
aren't ours: of ``Host``, since a name of an attacker can be made to point here (DNS rebinding), and of ``Origin`` and
``Sec-Fetch-Site`` where something would change.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.config.schema import ListenConfig
from supervisor.errors import CallerError
from supervisor.gateway.client_address import Network

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_AUTHORITY = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[^\s/?#@:\[\],]+)(?::([0-9]{0,5}))?")
_OWN_PORTS = {"http": 80, "https": 443}
_CHANGING = frozenset({"POST", "PUT", "DELETE", "PATCH"})
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2048}")
_LONGEST_SHOWN = 100
_PREFLIGHT_SECONDS = "600"
# A page sees only these of an answer's headers.
_EXPOSED = (
    "retry-after, x-request-id, x-should-retry, x-enginehouse-instance, x-enginehouse-queue-ms, x-enginehouse-load-ms, "
    "x-enginehouse-session, x-enginehouse-degraded"
)


@dataclass(frozen=True, slots=True)
class Site:
    """The rules, from ``listen`` of the config.

    Attributes:
        names: names that ``Host`` may carry; None: it isn't looked at.
        origins: pages of others that may use the address.
        proxies: whose ``X-Forwarded-For`` is believed.
    """

    names: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = ()


def site_of(listen: ListenConfig) -> Site:
    """The rules of a config."""
    address = ipaddress.ip_address(listen.host)
    mapped = getattr(address, "ipv4_mapped", None)
    names = None
    if listen.hosts or (mapped or address).is_loopback:
        own = frozenset() if address.is_unspecified else frozenset({str(address)})
        names = _LOOPBACK_NAMES | own | frozenset(listen.hosts)
    networks = tuple(ipaddress.ip_network(proxy, strict=False) for proxy in listen.trusted_proxies)
    return Site(names, frozenset(listen.cors_origins), networks)


@functools.lru_cache(maxsize=256)
def split_authority(text: str) -> tuple[str, int | None] | None:
    """Name and port of ``Host``; the name as it is compared; None: it can't be read."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    name = found[1].removesuffix(".").lower()
    if name.startswith("["):
        try:
            name = str(ipaddress.ip_address(name[1:-1]))
        except ValueError:
            return None
    return (name, int(found[2]) if found[2] else None) if name else None


def wrong_host(site: Site, hosts: Sequence[str]) -> CallerError | None:
    """The refusal of a request by its ``Host`` headers; None: they are right, or aren't looked at."""
    if site.names is None:
        return None
    split = split_authority(hosts[0]) if len(hosts) == 1 else None
    if split is not None and split[0] in site.names:
        return None
    said = f"the host {_shown(hosts[0])}" if len(hosts) == 1 else "no single host"
    return CallerError(
        "wrong_host",
        f"The request names {said}, and this daemon does not go by that name. If it is one of its own, add it to "
        "listen.hosts in the daemon's config; a reverse proxy must pass it on.",
    )


def cross_origin(site: Site, method: str, headers: Mapping[str, str]) -> CallerError | None:
    """The refusal of a request that would change something for a page of others; None: no page, or a good one."""
    if method not in _CHANGING:
        return None
    origin = headers.get("Origin")
    if origin is not None:
        named = origin in site.origins
        if not named and not _is_own(origin, headers.get("Host", "")):
            return _refused(f"A page of {_shown(origin)}")
        if named:
            return None
    if headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site":
        return _refused("A page of another site")
    return None


def cors_headers(site: Site, origin: str | None) -> dict[str, str]:
    """What lets a page of that origin read the answer; nothing for those that aren't named."""
    if origin is None or origin not in site.origins:
        return {}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED, "Vary": "Origin"}


def preflight_headers(site: Site, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
    """The answer to a browser that asks before it sends; None: it doesn't ask, or for no page that is named.

    It carries no token, by the browsers' own rules.
    """
    asks = method == "OPTIONS" and "Access-Control-Request-Method" in headers
    if not asks or headers.get("Origin") not in site.origins:
        return None
    answer = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
    }
    wanted = headers.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        answer["Access-Control-Allow-Headers"] = wanted
    if headers.get("Access-Control-Request-Private-Network") == "true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return answer


def _is_own(origin: str, host: str) -> bool:
    """Whether a page came from this very address; the same name at another port is another page's."""
    scheme, _, authority = origin.lower().partition("://")
    page, here = split_authority(authority), split_authority(host)
    if scheme not in _OWN_PORTS or page is None or here is None:
        return False
    usual = _OWN_PORTS[scheme]
    return (page[0], page[1] or usual) == (here[0], here[1] or usual)


def _refused(who: str) -> CallerError:
    return CallerError(
        "cross_origin",
        f"{who} may not change anything here. If it is yours, add its origin to listen.cors_origins in the daemon's "
        "config.",
    )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
