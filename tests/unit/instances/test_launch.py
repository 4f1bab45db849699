"""Addresses of launches."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engines.llama_cpp.adapter import LlamaCppAdapter
from supervisor.errors import ConfigError
from supervisor.instances.launch import prepare_ticket, sweep_sockets
from tests.support.sockets import short_socket_folder


def test_each_launch_has_a_short_name_and_a_key_of_its_own() -> None:
    """Two launches share neither socket nor key, and the path leaves room."""
    with short_socket_folder() as folder:
        one, two = (prepare_ticket(LlamaCppAdapter(), folder) for _ in range(2))
    assert one.endpoint != two.endpoint
    assert one.api_key != two.api_key
    assert len(one.api_key) >= 32
    assert one.endpoint.socket_path is not None
    assert len(one.endpoint.socket_path.name) <= 12


def test_a_path_that_a_socket_can_not_hold_is_refused() -> None:
    """107 bytes are what the kernel takes: said before an engine fails on it."""
    with pytest.raises(ConfigError, match="107 bytes"):
        prepare_ticket(LlamaCppAdapter(), Path("/tmp") / ("x" * 100))


def test_only_dead_sockets_are_swept() -> None:
    """Prevents socket files of a killed daemon from staying for ever; another daemon's living ones stay."""
    with short_socket_folder() as folder:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "dead.sock"))
            dead.listen()
        (folder / "other.txt").write_text("")
        with socket.socket(socket.AF_UNIX) as living:
            living.bind(str(folder / "living.sock"))
            living.listen()
            sweep_sockets(folder)
            assert {path.name for path in folder.iterdir()} == {"living.sock", "other.txt"}
