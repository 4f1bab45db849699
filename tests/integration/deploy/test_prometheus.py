"""Alerts and the board: as Prometheus reads them, and about metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from supervisor.clock import SystemClock
from supervisor.events import EventBus
from supervisor.telemetry.families import FAMILIES, PREFIX
from supervisor.telemetry.metrics import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "enginehouse.rules.yml"
BOARD = DEPLOY / "grafana" / "enginehouse.json"


def alerts() -> list[dict[str, Any]]:
    """Every rule."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def board_expressions() -> list[str]:
    """Every question that the board asks."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def known() -> dict[str, frozenset[str]]:
    """Names as they stand in the text, with their labels."""
    made: dict[str, frozenset[str]] = {}
    for family in FAMILIES:
        name = PREFIX + family.name
        endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[family.kind]
        for ending in endings:
            made[name + ending] = frozenset(family.labels) | ({"le"} if ending == "_bucket" else frozenset())
    return made


def test_promtool_accepts_rules_and_config() -> None:
    """As Prometheus would at its start."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: apt install prometheus")
    for what, name in (("rules", "enginehouse.rules.yml"), ("config", "prometheus.yml")):
        found = subprocess.run(
            [promtool, "check", what, name], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr


def test_each_alert_fires_when_it_should() -> None:
    """All of them in a bad half hour, none in a good one with a little of everything."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: apt install prometheus")
    scenes = Path(__file__).parents[2] / "data" / "prometheus" / "alerts.yml"
    found = subprocess.run([promtool, "test", "rules", str(scenes)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    bad, good = yaml.safe_load(scenes.read_text(encoding="utf-8"))["tests"]
    fired = {row["labels"] for row in bad["promql_expr_test"][0]["exp_samples"]}
    assert fired == {f'{{alertname="{rule["alert"]}"}}' for rule in alerts()}
    assert good["promql_expr_test"][0]["exp_samples"] == []


@pytest.mark.parametrize("where", ["alerts", "board"])
def test_they_ask_for_metrics_that_there_are(where: str) -> None:
    """A metric that was renamed would leave an alert silent for ever."""
    asked = [rule["expr"] for rule in alerts()] if where == "alerts" else board_expressions()
    names = known()
    for expression in asked:
        found = re.findall(r"\b(enginehouse_\w+)(?:\{([^}]*)\})?", expression)
        assert found or "up{" in expression, expression
        for name, selector in found:
            assert name in names, name
            labels = set(re.findall(r"(\w+)\s*(?:=~|=)", selector))
            assert labels <= names[name] | {"instance", "job"}, expression
        for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
            labels = {label.strip() for label in grouped.split(",")}
            everywhere = frozenset().union(*(names[name] for name, _ in found))
            assert labels <= everywhere | {"instance", "job"}, expression


def test_each_alert_says_what_it_means() -> None:
    """Whoever is woken by it reads only this."""
    for rule in alerts():
        assert rule["alert"].startswith("Enginehouse")
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]


async def test_names_and_units_follow_prometheus_conventions() -> None:
    """By its own linter, over every family; what engines call theirs is the engines' matter."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: apt install prometheus")
    text, _ = await Metrics(EventBus(SystemClock()), "1").render()
    with anyio.fail_after(60):
        found = await anyio.run_process([promtool, "check", "metrics"], input=text, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
