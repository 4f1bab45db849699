"""Short ways to a config or its problems, for these tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from supervisor.config.load import parse_config
from supervisor.config.problems import Problem
from supervisor.config.schema import Config
from supervisor.errors import ConfigError

FILE = Path("/etc/enginehouse/config.yaml")
ENV = {"HOME": "/home/ada"}


def good(text: str, env: Mapping[str, str] = ENV) -> Config:
    """The config in ``text``."""
    return parse_config(dedent(text).encode(), FILE, env)


def problems(text: str | bytes, env: Mapping[str, str] = ENV) -> list[Problem]:
    """The problems of a text that must have some."""
    data = text if isinstance(text, bytes) else dedent(text).encode()
    with pytest.raises(ConfigError) as caught:
        parse_config(data, FILE, env)
    assert caught.value.code == "config_invalid"
    found: list[Problem] = caught.value.facts["problems"]
    assert found
    return found


def only(text: str, env: Mapping[str, str] = ENV) -> Problem:
    """The one problem of a text that has just that."""
    found = problems(text, env)
    assert len(found) == 1, found
    return found[0]
