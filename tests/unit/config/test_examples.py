from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.contract import EngineKind
from supervisor.config.load import load_config
from supervisor.config.suggest import keys_at

EXAMPLES = Path(__file__).parents[3] / "examples"
ENV = {"HOME": "/home/ada"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_each_example_is_a_good_config(file: Path) -> None:
    """People copy these."""
    assert load_config(file, ENV).path == file


def test_the_examples_are_there() -> None:
    """A test over an empty folder would be green."""
    assert {"minimal", "full", "home-lab"} <= {file.stem for file in EXAMPLES.glob("*.yaml")}


@pytest.mark.parametrize(
    "place",
    [
        (),
        ("listen",),
        ("auth",),
        ("auth", "callers", 0),
        ("host",),
        ("host", "reserve"),
        ("host", "devices", "CUDA0"),
        ("engines", "llama.cpp"),
        ("engines", "llama.cpp", "builds", 0),
        ("models", "qwen3-8b"),
        ("models", "qwen3-8b", "presets", "default-chat"),
        ("models", "qwen3-8b", "launch"),
        ("broker",),
        ("broker", "queue"),
        ("broker", "eviction"),
        ("supervision",),
        ("supervision", "readiness"),
        ("supervision", "liveness"),
        ("supervision", "stop"),
        ("supervision", "restart"),
        ("supervision", "quarantine"),
        ("shutdown",),
    ],
    ids=lambda place: ".".join(map(str, place)) or "top",
)
def test_the_full_example_shows_every_key(place: tuple[str | int, ...]) -> None:
    """A new key of the schema is shown there too."""
    tree: Any = yaml.safe_load((EXAMPLES / "full.yaml").read_text())
    for step in place:
        tree = tree[step]
    assert set(tree) == set(keys_at(place, {}))


def test_the_full_example_writes_the_defaults() -> None:
    """Its values are those that hold without a file, where it doesn't show an example."""
    full, plain = load_config(EXAMPLES / "full.yaml", ENV).config, load_config(None, ENV).config
    for section in ("version", "listen", "state_dir", "data_dir", "concessions", "broker", "supervision", "shutdown"):
        assert getattr(full, section) == getattr(plain, section), section
    assert full.host.model_copy(update={"devices": {}}) == plain.host
    ours = full.models["qwen3-8b"].model_dump(exclude={"file", "aliases", "presets", "launch"})
    default = type(full.models["qwen3-8b"])().model_dump(exclude={"file", "aliases", "presets", "launch"})
    assert ours == default


def test_the_home_lab_is_reachable_and_asks_for_tokens() -> None:
    """It is the example for a public address."""
    config = load_config(EXAMPLES / "home-lab.yaml", ENV).config
    assert config.listen.host == "0.0.0.0"
    assert not config.auth.open
    assert config.auth.callers[0].token_file == EXAMPLES / "tokens/laptop"
    assert config.models["qwen3-8b"].keep_alive is None
    assert len(config.engines[EngineKind.LLAMA_CPP].builds) == 2
