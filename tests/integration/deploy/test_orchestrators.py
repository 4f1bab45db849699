"""Compose and Kubernetes files: valid, and with time to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from supervisor.config.load import parse_config
from supervisor.config.sections import ShutdownConfig
from supervisor.units import parse_duration

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "enginehouse.yaml").read_text(encoding="utf-8")))


def of_kind(kind: str) -> dict[str, Any]:
    """The one object of that kind."""
    [found] = [one for one in KUBERNETES if one["kind"] == kind]
    return dict(found)


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_accepts_every_object(version: str) -> None:
    """By its own schema, strictly: a key that it does not know is an error."""
    for one in KUBERNETES:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_pod_is_as_the_image_wants_it() -> None:
    """Its user, its folders, probes that need no token, and a config that the daemon accepts."""
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > ShutdownConfig().total
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/state", "/models", "/config", "/tmp"} <= mounted
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    text = of_kind("ConfigMap")["data"]["config.yaml"]
    config = parse_config(text.encode(), Path("/config/config.yaml"), {"HOME": "/state"})
    assert str(config.auth.callers[0].token_file).startswith("/secrets/")


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_files_fit_the_image(name: str) -> None:
    """Limits, a read-only root, sockets in memory, and more time to stop than the daemon takes."""
    document = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    service = document["services"]["enginehouse"]
    if name == "compose.gpu.yaml":
        assert service["build"]["target"] in (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
        return
    assert parse_duration(service["stop_grace_period"]) > ShutdownConfig().total
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert {volume.split(":")[1] for volume in service["volumes"]} == {"/models", "/state", "/config"}
    assert service["tmpfs"][0].startswith("/tmp")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "open to the network only on purpose"
