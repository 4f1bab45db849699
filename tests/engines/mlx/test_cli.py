"""MLX models on the command line: what a launch would take and why, and whether an interpreter will do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.command import enginehouse

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def _config(folder: Path, models: Path, interpreter: str = sys.executable) -> Path:
    """Two models over one interpreter."""
    file = folder / "config.yaml"
    file.write_text(
        "version: 1\n"
        f"state_dir: {folder}/state\n"
        f"engines: {{mlx: {{builds: [{{name: here, executable: {interpreter}}}]}}}}\n"
        "models:\n"
        f"  plain: {{engine: mlx, file: {models}/llama, launch: {{slots: 2}}}}\n"
        f"  guessing: {{engine: mlx, file: {models}/llama, launch: {{kv_bits: 8, draft_model: {models}/draft}}}}\n"
    )
    return file


def test_plan_explains_a_model(mlx_models: Path, tmp_path: Path) -> None:
    """The parts of its memory with what they are made of, and nothing that MLX does not have; for people the same."""
    config = _config(tmp_path, mlx_models)
    document = json.loads(enginehouse("plan", "plain", "--config", str(config), "--json").out)
    assert (document["engine"], document["fits"]) == ("mlx", True)
    reasons = {row["choice"]: row["reason"] for row in document["rationale"]}
    assert reasons["weights"].startswith("tensors of float16 in one file")
    assert reasons["kv"] == "a token takes 512 bytes in each of 2 layers; 2048 tokens, 2 at once"
    assert reasons["ctx_size"] == "what the model was trained on"
    assert not {"cache_type", "n_gpu_layers", "threads_batch"} & reasons.keys()
    assert document["memory"]["host"]["kv"] == 512 * 2 * 2048 * 2
    text = enginehouse("plan", "plain", "--config", str(config), on_terminal=True).out
    assert "plain with build here (mlx): it fits." in text
    assert "a token takes 512 bytes" in text
    assert "cache_type" not in text
    both = json.loads(enginehouse("plan", "guessing", "--config", str(config), "--json").out)
    assert both["memory"]["host"]["weights"] > document["memory"]["host"]["weights"], "the draft model counts"
    assert "quantised to 8 bits" in next(row["reason"] for row in both["rationale"] if row["choice"] == "kv")


def test_check_tells_the_versions_or_how_to_install(mlx_models: Path, tmp_path: Path) -> None:
    """Of the interpreter that the config names; one without packages says what to do, and so does `plan`."""
    good = enginehouse("check", str(_config(tmp_path, mlx_models)))
    assert "MLX 0." in good.out
    assert "mlx-lm 0." in good.out
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    config = _config(tmp_path, mlx_models, str(bare))
    said = enginehouse("check", str(config))
    assert "-m pip install" in said.out
    refused = enginehouse("plan", "plain", "--config", str(config), "--json")
    assert refused.code != 0
    assert "-m pip install" in refused.err
