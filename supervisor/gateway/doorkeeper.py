"""At the door of the one address: is the host right, does the browser's page belong here, who asks, may they."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from aiohttp import web

from supervisor.config.checks import cross_problems
from supervisor.config.problems import config_error, to_problems
from supervisor.config.schema import Config
from supervisor.gateway.auth import Need, missing_right, need_of, presented_tokens, unauthorized
from supervisor.gateway.caller import Caller, anyone
from supervisor.gateway.client_address import client_address
from supervisor.gateway.failed_attempts import FailedAttempts
from supervisor.gateway.site import Site, cors_headers, cross_origin, preflight_headers, site_of, wrong_host
from supervisor.gateway.tokens import Credential, find_caller, read_credentials

_NO_CONTENT = 204


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a config says about the door.

    Attributes:
        site: rules for browsers and proxies.
        credentials: the callers; with none of them no token is asked for.
    """

    site: Site
    credentials: tuple[Credential, ...] = ()


def read_access(config: Config, hide: Callable[[str], None]) -> Access:
    """The access that a config gives. Reads the token files: not on the loop of a daemon that serves.

    ``hide`` is told of each token, so that no log shows it. The rules between keys are asked again, since a reload
    holds a mixture: the callers of the new file, and the address of the old one.

    Raises:
        ConfigError: ``config_invalid`` with ``problems``: a token file can't be used, or others would reach the
            address and need no token.
    """
    found = cross_problems(config)
    if found:
        raise config_error(to_problems(found, {}, {}), None)
    return Access(site_of(config.listen), read_credentials(config.auth.callers, hide))


class Doorkeeper:
    """Decides who gets in; ``sleep`` takes seconds."""

    def __init__(
        self, access: Access, attempts: FailedAttempts, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    ) -> None:
        self._access = access
        self._attempts = attempts
        self._sleep = sleep

    def use(self, access: Access) -> None:
        """Go by this from now on; requests that are inside stay."""
        self._access = access

    def address(self, request: web.Request) -> str:
        """Where the request comes from."""
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return client_address(request.remote, forwarded, self._access.site.proxies)

    def headers(self, request: web.Request) -> dict[str, str]:
        """What every answer to this request carries, refusals among them."""
        return cors_headers(self._access.site, request.headers.get("Origin"))

    async def admit(self, request: web.Request) -> Caller:
        """Who asks; a wrong token's refusal waits a little, and longer each time.

        Raises:
            CallerError: ``wrong_host``, ``cross_origin``, ``unauthorized``, ``forbidden``.
        """
        access = self._access
        resource = request.match_info.route.resource
        need = need_of(None if resource is None else resource.canonical)
        if need is Need.NOTHING:
            return anyone(self.address(request))
        refusal = wrong_host(access.site, request.headers.getall("Host", []))
        refusal = refusal or cross_origin(access.site, request.method, request.headers)
        if refusal is not None:
            raise refusal
        if need is Need.PAGE:
            return Caller(self.address(request))
        if not access.credentials:
            return anyone(self.address(request))
        caller = await self._known(request, access)
        refusal = missing_right(need, caller)
        if refusal is not None:
            raise refusal
        return caller

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks before it sends; None: it is another request."""
        headers = preflight_headers(self._access.site, request.method, request.headers)
        return None if headers is None else web.Response(status=_NO_CONTENT, headers=headers)

    async def _known(self, request: web.Request, access: Access) -> Caller:
        tokens = presented_tokens(request.headers.get("Authorization"), request.headers.get("x-api-key"))
        found = [find_caller(access.credentials, token) for token in tokens]
        caller = next((caller for caller in found if caller is not None), None)
        if caller is not None:
            return caller
        if tokens:
            await self._sleep(self._attempts.count(self.address(request)))
        raise unauthorized(presented=bool(tokens))
