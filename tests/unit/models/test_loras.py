"""Installed LoRAs: a YAML file beside each of them."""

from pathlib import Path

import pytest

from supervisor.models.loras import read_loras


def install(folder: Path, name: str, words: str, suffix: str = ".safetensors") -> None:
    """A LoRA with this description; empty suffix: no weights."""
    (folder / f"{name}.yaml").write_text(words)
    if suffix:
        (folder / f"{name}{suffix}").write_bytes(b"weights")


def test_what_is_installed_is_found(tmp_path: Path) -> None:
    """With all that a request needs, in subfolders too; what it does not say has a default."""
    (tmp_path / "speed").mkdir()
    install(tmp_path, "pencil", "id: pencil\nname: Pencil\nbase_models: [sdxl]\nstrength: 0.8\nprompt: pencil sketch\n")
    install(tmp_path / "speed", "fast", "id: fast\npurpose: speed\nrender: {steps: 4, cfg_scale: 1}\n", ".gguf")
    shelf = read_loras(tmp_path)
    pencil, fast = shelf.find("pencil"), shelf.find("fast")
    assert shelf.problems == ()
    assert pencil is not None
    assert fast is not None
    assert (pencil.name, pencil.strength, pencil.prompt, pencil.relative) == (
        "Pencil",
        0.8,
        "pencil sketch",
        "pencil.safetensors",
    )
    assert pencil.is_for("sdxl", "any")
    assert not pencil.is_for("flux", "any")
    assert (fast.name, fast.relative, fast.is_for("flux")) == ("fast", "speed/fast.gguf", True)
    assert fast.summary() == {"id": "fast", "name": "fast", "purpose": "speed", "steps": 4}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("id: [", "while parsing"),
        ("name: x\n", "id"),
        ("id: a\npurpose: magic\n", "purpose"),
        ("id: a\npath: /etc/passwd\n", "path"),
        ("id: a\nstrength: 1e9\n", "strength"),
        ("- a\n", "valid dictionary"),
        ("!!python/object/apply:os.system ['true']", "could not determine"),
    ],
)
def test_a_bad_description_is_told_and_hides_no_other(tmp_path: Path, words: str, problem: str) -> None:
    """It is the work of strangers."""
    install(tmp_path, "bad", words)
    install(tmp_path, "good", "id: good\n")
    shelf = read_loras(tmp_path)
    assert [lora.id for lora in shelf.loras] == ["good"]
    assert problem in shelf.problems[0]


def test_names_are_unique_and_weights_are_there(tmp_path: Path) -> None:
    """The first of two keeps the id."""
    install(tmp_path, "a", "id: same\n")
    install(tmp_path, "b", "id: same\n")
    install(tmp_path, "c", "id: other\n", "")
    shelf = read_loras(tmp_path)
    assert [lora.relative for lora in shelf.loras] == ["a.safetensors"]
    assert ["is taken by" in shelf.problems[0], "there is no c.safetensors" in shelf.problems[1]] == [True, True]


def test_no_folder_holds_none(tmp_path: Path) -> None:
    """Not named, or not there."""
    assert read_loras(None).loras == read_loras(tmp_path / "none").loras == ()
