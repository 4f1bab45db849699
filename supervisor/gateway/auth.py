"""Who may what. Pure: from a route and a caller to a yes, or to the refusal."""

from __future__ import annotations

import functools
import re
from base64 import b64decode
from enum import Enum, auto

from supervisor.errors import CallerError
from supervisor.gateway.caller import Caller

_BEARER = re.compile(r"\s*bearer[ \t]+(\S+)\s*", re.IGNORECASE)
_CHALLENGE = 'Bearer realm="enginehouse"'


class Need(Enum):
    """What a route asks of whom it serves."""

    NOTHING = auto()
    """Served without a token."""
    PAGE = auto()
    """Served without a token to whom names the host rightly: the page's files, by which a token is entered."""
    CALLER = auto()
    """A token, of whatever role."""
    USE = auto()
    ADMIN = auto()
    NUMBERS = auto()
    """A token of whatever role that sees all models: the numbers name them."""


# Every route stands here or below one of the prefixes; one that doesn't is for admins until somebody decides.
_EXACTLY = {
    "/healthz": Need.NOTHING,
    "/readyz": Need.NOTHING,
    "/": Need.PAGE,
    "/openapi.json": Need.CALLER,
    "/metrics": Need.NUMBERS,
    # Behind a name that nobody can guess: pages show the picture without sending a token.
    "/v1/images/files/{name}": Need.PAGE,
}
_BELOW = {"/status_page/": Need.PAGE, "/v1/": Need.USE, "/api/": Need.USE, "/upstream/": Need.USE, "/sdapi/": Need.USE}


@functools.cache
def need_of(route: str | None) -> Need:
    """What the route asks for, by the pattern that it was mounted with: a path can be spelled in many ways.

    None: there is no such route, or not with this method; only callers hear that.
    """
    if route is None:
        return Need.CALLER
    found = next((need for prefix, need in _BELOW.items() if route.startswith(prefix)), Need.ADMIN)
    return _EXACTLY.get(route, found)


def presented_tokens(authorization: str | None, api_key: str | None) -> tuple[str, ...]:
    """The tokens that a request carries: ``Authorization: Bearer``, then ``x-api-key``; each once.

    Clients of A1111 know only ``Basic``: there the password is the token, whatever the name.
    """
    bearer = _BEARER.fullmatch(authorization or "")
    found = [bearer[1] if bearer else _password(authorization or ""), (api_key or "").strip()]
    return tuple(dict.fromkeys(token for token in found if token))


def _password(authorization: str) -> str:
    kind, _, encoded = authorization.partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor UTF-8
        return ""


def unauthorized(*, presented: bool) -> CallerError:
    """The refusal of a request without a token, or (``presented``) with one that is nobody's."""
    if presented:
        return CallerError(
            "unauthorized",
            "The token is none of this daemon's: it must be what stands in the token_file of a caller in its config.",
            challenge=f'{_CHALLENGE}, error="invalid_token"',
        )
    return CallerError(
        "unauthorized",
        "A token is needed here: send it as `Authorization: Bearer TOKEN` or as `x-api-key: TOKEN`.",
        challenge=_CHALLENGE,
    )


def missing_right(need: Need, caller: Caller) -> CallerError | None:
    """The refusal of a known caller whose rights are not enough; None: they are."""
    if need is Need.USE or need is Need.ADMIN:
        role = "use" if need is Need.USE else "admin"
        return None if role in caller.roles else _forbidden(caller, f"the role {role}")
    if need is Need.NUMBERS and caller.models is not None and "admin" not in caller.roles:
        return _forbidden(caller, "the role admin, since its models are limited and the numbers name all of them")
    return None


def _forbidden(caller: Caller, lacks: str) -> CallerError:
    return CallerError(
        "forbidden", f"The caller {caller.name} would need {lacks}: see auth.callers in the daemon's config."
    )
