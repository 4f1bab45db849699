"""What hides secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.telemetry.redaction import Redactor


@pytest.mark.parametrize(
    "key",
    ["token", "api_key", "API-Key", "apiKey", "LLAMA_API_KEY", "password", "Authorization", "set-cookie", "secrets"],
)
def test_a_value_under_a_secret_key_is_hidden(key: str) -> None:
    """The key alone decides, at any depth, whatever the value looks like."""
    assert Redactor().clean({"env": [{key: "abc"}]}) == {"env": [{key: "***"}]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_tokens", 16),
        ("prompt_tokens", 3),
        ("token_file", "/run/t"),
        ("tokens", None),
        ("api_key", True),
        ("n", "x"),
    ],
)
def test_counts_and_paths_stay_readable(key: str, value: Any) -> None:
    """Token counts, flags and the paths of secret files are what an owner looks for in a log."""
    assert Redactor().clean({key: value}) == {key: value}


def test_a_registered_secret_is_hidden_inside_any_text() -> None:
    """A token in an engine's own log line or a traceback is replaced where it stands."""
    redactor = Redactor(["s3cret"])
    assert redactor.clean({"log": ("key=s3cret;", b"s3cret"), "s": "a s3cret s3cret"}) == {
        "log": ["key=***;", "***"],
        "s": "a *** ***",
    }


def test_a_secret_that_begins_another_leaves_no_tail_behind() -> None:
    """Of two secrets the longer one is looked for first; special characters are taken as they are."""
    redactor = Redactor(["abc.", "abc.def"])
    assert redactor.clean("abc.def abcxdef") == "*** abcxdef"


def test_a_bearer_header_is_hidden_without_being_registered() -> None:
    """A wrong token that a client sent is still somebody's token."""
    assert Redactor().clean("got Authorization: Bearer sk-12345678 there") == "got Authorization: Bearer *** there"


def test_a_discarded_secret_and_an_empty_one_change_nothing() -> None:
    """An empty registered string would match everywhere; a discarded one is no secret any more."""
    redactor = Redactor(["", "old-token"])
    redactor.discard("old-token")
    redactor.discard("never-there")
    assert redactor.clean("old-token") == "old-token"


@given(st.text(min_size=1), st.text(), st.text())
def test_no_registered_secret_survives(secret: str, before: str, after: str) -> None:
    """Whatever surrounds a secret, it is not in what comes out (stars apart, which are what we write)."""
    if set(secret) <= {"*"}:
        return
    cleaned = Redactor([secret]).clean(before.replace("*", "") + secret + after.replace("*", ""))
    assert secret not in cleaned.replace("***", "\x00") or "\x00" in secret
