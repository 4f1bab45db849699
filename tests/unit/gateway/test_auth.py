from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.config.sections import Role
from supervisor.gateway.auth import Need, missing_right, need_of, presented_tokens, unauthorized
from supervisor.gateway.caller import Caller, anyone


@pytest.mark.parametrize(
    ("route", "need"),
    [
        ("/healthz", Need.NOTHING),
        ("/readyz", Need.NOTHING),
        ("/", Need.PAGE),
        ("/status_page/{file}", Need.PAGE),
        ("/metrics", Need.NUMBERS),
        ("/v1/models", Need.USE),
        ("/v1/models/{id}", Need.USE),
        ("/v1/chat/completions", Need.USE),
        ("/admin/v1/status", Need.ADMIN),
        ("/admin/v1/models/{id}/load", Need.ADMIN),
        ("/healthz/more", Need.ADMIN),
        ("/v1", Need.ADMIN),
        ("/brand-new", Need.ADMIN),
        (None, Need.CALLER),
    ],
)
def test_what_a_route_needs(route: str | None, need: Need) -> None:
    """Health is free, models are for `use`, and a route that nobody has thought about is for admins alone."""
    assert need_of(route) is need


@pytest.mark.parametrize("roles", [(), ("use",), ("admin",), ("use", "admin")])
@pytest.mark.parametrize("limited", [False, True])
def test_a_caller_has_the_roles_that_are_listed(roles: tuple[Role, ...], limited: bool) -> None:
    """No role holds another one. The numbers name every model, so one who may not see all of them must be admin."""
    caller = Caller("c", frozenset(roles), models=frozenset({"m"}) if limited else None)
    allowed = {need for need in Need if missing_right(need, caller) is None}
    expected = {Need.NOTHING, Need.PAGE, Need.CALLER}
    expected |= {Need.USE} if "use" in roles else set()
    expected |= {Need.ADMIN} if "admin" in roles else set()
    expected |= {Need.NUMBERS} if "admin" in roles or not limited else set()
    assert allowed == expected


def test_a_refusal_names_the_caller_and_what_it_lacks() -> None:
    """The owner reads it in a client's error."""
    refusal = missing_right(Need.ADMIN, Caller("laptop", frozenset({"use"})))
    assert refusal is not None
    assert refusal.code == "forbidden"
    assert "laptop" in refusal.message
    assert "the role admin" in refusal.message


def test_a_caller_made_without_roles_may_nothing() -> None:
    """Code that forgets the roles must not open a door; only `anyone` has all."""
    assert missing_right(Need.USE, Caller("c")) is not None
    assert all(missing_right(need, anyone("127.0.0.1")) is None for need in Need)


@pytest.mark.parametrize(
    ("authorization", "api_key", "tokens"),
    [
        (None, None, ()),
        ("Bearer abc", None, ("abc",)),
        ("bearer\t abc  ", None, ("abc",)),
        ("Bearer", None, ()),
        ("Bearer ", None, ()),
        ("Bearer a b", None, ()),
        ("Bearerabc", None, ()),
        ("Basic abc", None, ()),
        ("abc", None, ()),
        (None, "abc", ("abc",)),
        (None, "  ", ()),
        ("Bearer abc", "def", ("abc", "def")),
        ("Bearer abc", "abc", ("abc",)),
        ("Basic abc", "def", ("def",)),
    ],
)
def test_where_a_token_stands(authorization: str | None, api_key: str | None, tokens: tuple[str, ...]) -> None:
    """In `Authorization: Bearer`, as OpenAI's clients send it, or in `x-api-key`, as Anthropic's do."""
    assert presented_tokens(authorization, api_key) == tokens


@given(st.text(), st.text())
@example("Bearer " * 1000, "")
@example("Bearer" + " \t" * 5000 + "\n", "\udcff")
def test_any_header_can_be_read(authorization: str, api_key: str) -> None:
    """Whatever a client sends: no exception, and what comes out is what stood there, without blanks around it."""
    for token in presented_tokens(authorization, api_key):
        assert token
        assert token == token.strip()
        assert token in authorization or token in api_key


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_any_word_is_found_as_a_token(word: str) -> None:
    """Every token that a file may hold arrives, by either header."""
    assert presented_tokens(f"Bearer {word}", None) == (word,)
    assert presented_tokens(None, word) == (word,)


def test_the_challenge_says_whether_a_token_was_there() -> None:
    """As RFC 6750 has it; clients and people tell the two apart."""
    assert unauthorized(presented=False).facts["challenge"] == 'Bearer realm="enginehouse"'
    assert 'error="invalid_token"' in unauthorized(presented=True).facts["challenge"]
