from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.schema import CallerConfig
from supervisor.errors import ConfigError
from supervisor.gateway.caller import Caller
from supervisor.gateway.tokens import Credential, digest_of, find_caller, read_credentials

TOKEN = "b2f1c0ffee" * 4


def token_file(folder: Path, name: str, content: str | bytes = TOKEN, mode: int = 0o600) -> Path:
    """A file with a token."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def refused(*callers: CallerConfig) -> list[Any]:
    """The problems of these callers."""
    with pytest.raises(ConfigError) as caught:
        read_credentials(callers, lambda _token: None)
    assert caught.value.code == "config_invalid"
    assert TOKEN not in caught.value.message
    return list(caught.value.facts["problems"])


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users of the machine can look into; pytest's own can't be."""
    private = [folder for folder in (tmp_path, *tmp_path.parents) if not folder.stat().st_mode & 0o001]
    if any(folder.stat().st_uid != os.geteuid() for folder in private):
        pytest.skip("the folder for temporary files is private, and not ours to open")
    modes = {folder: folder.stat().st_mode for folder in private}
    for folder in private:
        folder.chmod(modes[folder] | 0o001)
    yield tmp_path
    for folder, mode in modes.items():
        folder.chmod(mode)


def test_a_callers_token_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    """What is kept says everything about the caller and nothing of the token; the token is told to the redactor."""
    hidden: list[str] = []
    config = CallerConfig(
        name="laptop",
        token_file=token_file(tmp_path, "t", f"\ufeff  {TOKEN}\r\n"),
        roles=("use", "admin"),
        weight=2,
        max_lane="background",
        trusted=True,
        max_concurrent=3,
        models=("a", "b"),
    )
    (credential,) = read_credentials([config], hidden.append)
    assert credential.caller == Caller(
        name="laptop",
        roles=frozenset({"use", "admin"}),
        weight=2,
        max_lane="background",
        trusted=True,
        max_concurrent=3,
        models=frozenset({"a", "b"}),
    )
    assert hidden == [TOKEN]
    assert TOKEN not in repr(credential)
    assert credential.digest.hex() not in repr(credential)
    assert find_caller([credential], TOKEN) == credential.caller


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (f"{TOKEN}\n{TOKEN}", "something else"),
        ("two words", "something else"),
        ("schlüssel", "something else"),
        (b"\xff\xfe\x00", "something else"),
        ("a\0b", "something else"),
        ("x" * 5000, "something else"),
    ],
)
def test_a_file_that_holds_no_token_says_how_to_make_one(tmp_path: Path, content: str | bytes, said: str) -> None:
    """An empty token would let everybody in, and one with blanks in it could never arrive."""
    path = token_file(tmp_path, "t", content)
    (problem,) = refused(CallerConfig(name="a", token_file=path))
    assert problem.path == "auth.callers[0].token_file"
    assert str(path) in problem.message
    assert said in problem.message
    assert "openssl rand" in problem.suggestion


def test_a_file_that_is_not_there_a_folder_and_a_circle(tmp_path: Path) -> None:
    """All problems at once, each with its place."""
    (tmp_path / "circle").symlink_to("circle")
    names = ("gone", ".", "circle")
    callers = [CallerConfig(name=f"c{n}", token_file=tmp_path / name) for n, name in enumerate(names)]
    problems = refused(*callers)
    assert [problem.path for problem in problems] == [f"auth.callers[{n}].token_file" for n in range(3)]
    assert "is not there" in problems[0].message
    assert "is not a file" in problems[1].message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Prevents: a start that hangs for ever in the opening of a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    (problem,) = refused(CallerConfig(name="a", token_file=tmp_path / "pipe"))
    assert "is not a file" in problem.message


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_file_that_everybody_can_read_or_change_is_refused(open_folder: Path, mode: int) -> None:
    """Its token is no secret; the fix is said, also for containers."""
    path = token_file(open_folder, "t", mode=mode)
    (problem,) = refused(CallerConfig(name="a", token_file=path))
    assert f"every user of this machine can read or change {path}" in problem.message
    assert f"chmod 600 {path}" in problem.suggestion
    assert "defaultMode" in problem.suggestion


def test_a_link_is_judged_by_what_it_leads_to(open_folder: Path) -> None:
    """Kubernetes mounts secrets as links."""
    (open_folder / "link").symlink_to(token_file(open_folder, "t", mode=0o644))
    (problem,) = refused(CallerConfig(name="a", token_file=open_folder / "link"))
    assert "every user" in problem.message


def test_a_private_folder_protects_what_is_in_it(open_folder: Path) -> None:
    """Nobody else gets to a file in a folder that nobody else can enter, whatever its own mode."""
    private = open_folder / "private"
    private.mkdir(mode=0o700)
    path = token_file(private, "t", mode=0o644)
    assert len(read_credentials([CallerConfig(name="a", token_file=path)], lambda _token: None)) == 1


def test_two_callers_with_one_token_are_refused(tmp_path: Path) -> None:
    """Else one of the two would be taken for the other."""
    first, second = token_file(tmp_path, "a"), token_file(tmp_path, "b", f"{TOKEN}\n")
    (problem,) = refused(CallerConfig(name="a", token_file=first), CallerConfig(name="b", token_file=second))
    assert problem.path == "auth.callers[1].token_file"
    assert "the token of a too" in problem.message


def test_short_tokens_do_not_make_the_log_unreadable(tmp_path: Path) -> None:
    """A token such as `a` would hide every a."""
    hidden: list[str] = []
    read_credentials([CallerConfig(name="a", token_file=token_file(tmp_path, "t", "abcde"))], hidden.append)
    assert hidden == []


class _Counted:
    """Says how many of its credentials were looked at."""

    def __init__(self, *names: str) -> None:
        self._credentials = [Credential(Caller(name), digest_of(name)) for name in names]
        self.looks = 0

    def __iter__(self) -> Iterator[Credential]:
        for credential in self._credentials:
            self.looks += 1
            yield credential


@pytest.mark.parametrize("token", ["first", "last", "nobody's", "", "firs"])
def test_every_token_is_compared_with_all(token: str) -> None:
    """Known or not, the first caller's or the last's: the same work, so that the time says nothing."""
    names = ("first", "second", "last")
    credentials = _Counted(*names)
    found = find_caller(credentials, token)
    assert (found.name if found else None) == (token if token in names else None)
    assert credentials.looks == 3


@given(st.text(), st.text())
def test_only_the_very_token_is_taken(one: str, other: str) -> None:
    """Any text can be asked for, also what no header should hold; only the same text matches."""
    credential = Credential(Caller("c"), digest_of(one))
    assert (find_caller([credential], other) is not None) == (one == other)
