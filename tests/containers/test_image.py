"""The image as an owner runs it: read-only, without rights, with a CPU quota and a memory limit."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import Container
from tests.support import sd_server
from tests.support.images import ROOT, Podman, build_image, limited
from tests.support.sockets import free_port

# The first build makes a base image and fetches every package.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

MODEL = "SmolLM2-135M-Instruct.Q4_1"


@contextmanager
def started(podman: Podman, image: str, *options: str, port: int) -> Iterator[Container]:
    """A container of the image; gone afterwards."""
    name = f"eh-test-{secrets.token_hex(4)}"
    command = ["serve", "--host", "127.0.0.1", "--port", str(port), "--first-token"]
    # The address is this machine's own, since the test shares its network.
    health = f"--env=ENGINEHOUSE_HEALTH=http://127.0.0.1:{port}/healthz"
    podman.run("run", "--detach", "--name", name, health, *options, image, *command)
    try:
        yield Container(podman, name)
    finally:
        podman.run("rm", "--force", "--time", "15", name)


def ask(port: int, path: str, token: str, body: Any = None, timeout: float = 120.0) -> tuple[int, bytes]:
    """Status and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        payload = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, payload, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def chat(**more: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, **more}


def test_it_answers_by_its_limits_and_drains(podman: Podman, image: str, models: Path, state: str) -> None:
    """Not open to all, a chat answers, the threads are the quota's, and SIGTERM lets an answer end.

    Then the next container of the same state: the token is the same, and is not said again.
    """
    port = free_port()
    options = limited("--cpus=1", "--memory=1600m", f"--volume={models}:/models:ro", f"--volume={state}:/state")
    with started(podman, image, *options, port=port) as container:
        log = container.wait_for("daemon_listening")
        [token] = re.findall(r"(?m)^ {4}(\S{40,})$", log)
        container.wait_for("build_found")
        assert ask(port, "/v1/models", "wrong")[0] == 401
        status, body = ask(port, "/v1/chat/completions", token, chat())
        assert status == 200, body
        assert json.loads(body)["choices"][0]["message"]["content"]

        document = json.loads(ask(port, "/admin/v1/status", token)[1])
        [row] = document["instances"]
        assert row["plan"]["threads"] == 1
        [why] = [choice["reason"] for choice in row["plan"]["rationale"] if choice["choice"] == "threads"]
        assert "quota" in why
        assert document["cpu"]["quota"] == 1
        assert "memory" in document["ledger"]["host"]["why"]
        assert document["ledger"]["host"]["budget"] < 1600 * 2**20

        assert podman.run("healthcheck", "run", container.name).returncode == 0
        inside = podman.run("exec", container.name, "sh", "-c", "id -u; cat /proc/1/comm; touch /x 2>&1; true").stdout
        assert inside.splitlines()[:2] == ["10001", "tini"]
        assert "Read-only" in inside
        _drain(container, port, token)
    with started(podman, image, *options, port=port) as container:
        log = container.wait_for("build_found")
        assert token not in log
        assert ask(port, "/v1/models", token)[0] == 200


def _drain(container: Container, port: int, token: str) -> None:
    """SIGTERM in the middle of an answer: what was begun ends properly, and so does the container."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True, max_tokens=6)), headers)
    answer = connection.getresponse()
    first = answer.readline()
    began = time.monotonic()
    container.podman.run("stop", "--time", "15", container.name)
    rest = answer.read()
    connection.close()
    assert first.startswith(b"data: ")
    assert b"[DONE]" in rest or b'"draining"' in rest, rest
    assert time.monotonic() - began < 12
    code = container.podman.run("inspect", container.name, "--format", "{{.State.ExitCode}}").stdout.strip()
    assert code == "0"
    assert "daemon_stopping" in container.logs()


def test_nothing_of_the_machine_that_built_it_is_inside(podman: Podman, image: str) -> None:
    """Its certificates and its way to the package index were only lent; and the image is as it was meant."""
    show = "cat /etc/pip.conf; ls /opt/enginehouse/bin/enginehouse /usr/bin/tini; ls -A /models /config"
    inside = podman.run("run", "--rm", "--network=none", "--entrypoint=sh", image, "-c", show).stdout
    assert inside.splitlines()[:2] == ["/opt/enginehouse/bin/enginehouse", "/usr/bin/tini"]
    [facts] = json.loads(podman.run("image", "inspect", image).stdout)
    assert facts["Config"]["User"] == "10001:10001"
    assert set(facts["Config"]["Volumes"]) == {"/models", "/state", "/config"}
    assert facts["Size"] < 700 * 2**20
    version = podman.run("run", "--rm", "--network=none", "--no-healthcheck", image, "--version").stdout
    assert version.startswith("enginehouse ")


def test_the_image_compiles_the_sd_server_that_tests_draw_with() -> None:
    """The same source, by its hash, with the same options: else the image's would be one that nobody has tried."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    given = dict(re.findall(r"(?m)^ARG (SD_\w+)=(\S+)$", dockerfile))
    assert f"stable-diffusion-cpp-python=={given['SD_VERSION']}" == sd_server.REQUIREMENT
    assert given["SD_SHA256"] == sd_server.SDIST_SHA256
    script = (ROOT / "deploy" / "image" / "build_sd_server.sh").read_text(encoding="utf-8")
    script = script.replace('"pypi-$version"', f"pypi-{given['SD_VERSION']}")
    assert {option for option in sd_server.OPTIONS if option not in script} == set()


@pytest.mark.slow
def test_sd_server_is_compiled_in_the_image(podman: Podman) -> None:
    """`docker build .` as it stands in the README; once the source could not be fetched, and nobody had tried."""
    image = build_image(podman, {})
    said = podman.run("run", "--rm", "--network=none", "--no-healthcheck", "--entrypoint=sd-server", image, "--version")
    assert "stable-diffusion.cpp version pypi-" in said.stdout + said.stderr
