"""The environment that a child gets: little, on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

# What a program needs to find its files and its language, and no more.
_MINIMAL = ("PATH", "HOME", "LANG", "LC_*", "TMPDIR", "TZ")
_SECRET = ("*_API_KEY", "*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*PRIVATE_KEY*", "*CREDENTIAL*")


def child_environment(own: Mapping[str, str], pass_through: Iterable[str], extra: Mapping[str, str]) -> dict[str, str]:
    """A child's whole environment.

    Args:
        own: the supervisor's own environment.
        pass_through: names and patterns (``CUDA_*``) that are handed on from ``own``; the engine's adapter lists them.
        extra: variables set on top; the only way for a name that looks like a secret.

    Returns:
        A new dict.
    """
    patterns = (*_MINIMAL, *pass_through)
    handed_on = {
        name: value for name, value in own.items() if _matches(name, patterns) and not _matches(name.upper(), _SECRET)
    }
    return handed_on | dict(extra)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
