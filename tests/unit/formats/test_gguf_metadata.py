"""From headers to the facts of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.contract import ModelFileError, ModelMetadata, NotAModelError
from engines.formats.gguf import is_model, metadata_of, read_header, read_metadata, split_files
from tests.fakes.tiny_gguf import LLAMA, Tensor, Typed, write_gguf, write_parts


def _metadata(tmp_path: Path, changes: dict[str, Any] | None = None, *without: str) -> ModelMetadata:
    kept = {key: value for key, value in LLAMA.items() if key not in without}
    return read_metadata((write_gguf(tmp_path / "m.gguf", {**kept, **(changes or {})}),))


def test_a_header_becomes_the_facts_of_a_model(tmp_path: Path) -> None:
    """Every field of a plain chat model, and the scalars for the memory estimate."""
    facts = _metadata(tmp_path)
    assert facts == ModelMetadata(
        format="gguf",
        architecture="llama",
        file_bytes=(tmp_path / "m.gguf").stat().st_size,
        tensor_bytes=512,
        name="Tiny",
        quantization="Q4_K_M",
        parameter_count=128,
        context_length=2048,
        block_count=3,
        embedding_length=64,
        head_count=4,
        head_count_kv=(2, 2, 2),
        key_length=16,
        value_length=16,
        vocabulary_size=4,
        has_chat_template=True,
        fields={
            key: value
            for key, value in LLAMA.items()
            if key not in {"tokenizer.ggml.tokens", "tokenizer.chat_template"}
        },
    )


def test_what_the_header_does_not_say_is_none(tmp_path: Path) -> None:
    """Unknown is None, never 0; and no template is no template."""
    facts = read_metadata((write_gguf(tmp_path / "m.gguf", {"general.architecture": "mamba"}),))
    unknown = (facts.name, facts.quantization, facts.context_length, facts.block_count, facts.head_count)
    assert unknown == (None,) * 5
    assert (facts.head_count_kv, facts.key_length, facts.vocabulary_size, facts.pooling, facts.causal) == (None,) * 5
    assert facts.has_chat_template is False


def test_heads_by_layer_are_kept(tmp_path: Path) -> None:
    """Hybrid models have layers without a cache (0): a single number would be wrong for them."""
    facts = _metadata(tmp_path, {"llama.attention.head_count_kv": [0, 2, 0], "llama.attention.head_count": [4, 8, 4]})
    assert (facts.head_count, facts.head_count_kv) == (8, (0, 2, 0))


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    """The format's default: no grouped attention."""
    assert _metadata(tmp_path, None, "llama.attention.head_count_kv").head_count_kv == (4, 4, 4)


def test_stated_key_and_value_lengths_win(tmp_path: Path) -> None:
    """Some models have heads that are wider than embedding_length / head_count."""
    facts = _metadata(tmp_path, {"llama.attention.key_length": 128, "llama.attention.value_length": 96})
    assert (facts.key_length, facts.value_length) == (128, 96)


def test_the_vocabulary_is_counted_or_taken_from_its_key(tmp_path: Path) -> None:
    """A vocabulary in the file is what the engine counts; without one the key says it."""
    assert _metadata(tmp_path, {"llama.vocab_size": 99}).vocabulary_size == 4
    assert _metadata(tmp_path, {"llama.vocab_size": 99}, "tokenizer.ggml.tokens").vocabulary_size == 99


@pytest.mark.parametrize(
    ("number", "name"), [(0, "none"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank"), (9, None)]
)
def test_the_pooling_has_a_name(tmp_path: Path, number: int, name: str | None) -> None:
    """It decides what the model serves; a number unknown here is no pooling."""
    facts = _metadata(tmp_path, {"llama.pooling_type": number, "llama.attention.causal": False})
    assert (facts.pooling, facts.causal) == (name, False)


def test_a_named_template_counts_and_an_empty_one_does_not(tmp_path: Path) -> None:
    """``tokenizer.chat_template.NAME`` is a template too."""
    assert _metadata(tmp_path, {"tokenizer.chat_template.tool_use": "x"}, "tokenizer.chat_template").has_chat_template
    assert not _metadata(tmp_path, {"tokenizer.chat_template": ""}).has_chat_template


def test_a_guessed_file_type_keeps_its_name(tmp_path: Path) -> None:
    """Tools add 1024 where they guessed."""
    assert _metadata(tmp_path, {"general.file_type": 1024 + 7}).quantization == "Q8_0"
    assert _metadata(tmp_path, {"general.file_type": 999}).quantization is None


@pytest.mark.parametrize("wrong", ["many", True, 1.5, Typed("i32", -1), Typed("u64", 2**64 - 1)])
def test_a_value_of_the_wrong_type_reads_as_not_said(tmp_path: Path, wrong: object) -> None:
    """A text or an absurd number must not travel on into the arithmetic."""
    facts = _metadata(tmp_path, {"llama.context_length": wrong, "llama.attention.head_count_kv": wrong})
    assert facts.context_length is None
    assert facts.head_count_kv == (4, 4, 4)


def test_numbers_that_json_can_not_hold_are_left_out(tmp_path: Path) -> None:
    """NaN and infinity would make the cached entry unreadable."""
    facts = _metadata(tmp_path, {"llama.x": float("nan"), "llama.y": float("inf"), "llama.z": 0.5})
    assert "llama.x" not in facts.fields
    assert "llama.y" not in facts.fields
    assert facts.fields["llama.z"] == 0.5


def test_an_absurd_number_of_layers_is_refused(tmp_path: Path) -> None:
    """Prevents: one entry for each of four billion layers."""
    with pytest.raises(ModelFileError, match="4294967295 layers"):
        _metadata(tmp_path, {"llama.block_count": 2**32 - 1})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.type": "mmproj"}, "projector"),
        ({"general.architecture": "clip"}, "projector"),
        ({"general.type": "adapter"}, "LoRA"),
        ({"general.type": "imatrix"}, "importance"),
        ({"general.architecture": "controlvector"}, "control vector"),
    ],
)
def test_what_belongs_to_a_model_is_no_model(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Projectors and adapters lie beside models and must not be listed as models."""
    path = write_gguf(tmp_path / "m.gguf", {**LLAMA, **changes})
    assert not is_model(read_header(path))
    with pytest.raises(NotAModelError, match=says):
        read_metadata((path,))


def test_a_model_is_a_model(tmp_path: Path) -> None:
    """Also when an old converter wrote no general.type."""
    assert is_model(read_header(write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})))


def test_without_architecture_or_weights_it_is_no_model_to_serve(tmp_path: Path) -> None:
    """The engine would refuse both after a start."""
    with pytest.raises(ModelFileError, match="no architecture"):
        _metadata(tmp_path, None, "general.architecture")
    with pytest.raises(ModelFileError, match="only a vocabulary"):
        read_metadata((write_gguf(tmp_path / "v.gguf", LLAMA, []),))


def test_the_parts_of_a_split_model_are_one_model(tmp_path: Path) -> None:
    """The first part gives all parts in order; sizes are sums; later parts are no models."""
    parts = write_parts(tmp_path, "big", 3)
    assert split_files(parts[0]) == parts
    assert split_files(parts[1]) is None
    facts = read_metadata(parts)
    assert (facts.split_count, facts.tensor_bytes, facts.parameter_count) == (3, 3 * 512, 3 * 128)
    assert facts.file_bytes == sum(part.stat().st_size for part in parts)
    assert metadata_of([read_header(part) for part in parts], 7).file_bytes == 7


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """Whether it is a later one, or the first, which nothing else would miss."""
    parts = write_parts(tmp_path, "big", 6)
    for part in parts[1:]:
        part.unlink()
    with pytest.raises(ModelFileError, match=r"big-00002-of-00006.gguf, .*00004-of-00006.gguf and 2 more"):
        split_files(parts[0])
    parts = write_parts(tmp_path, "other", 2)
    parts[0].unlink()
    with pytest.raises(ModelFileError, match=r"needs other-00001-of-00002.gguf"):
        split_files(parts[1])


@pytest.mark.parametrize("name", ["m.gguf", "m-1-of-2.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_other_names_are_one_file(tmp_path: Path, name: str) -> None:
    """Only the splitter's own form of name means parts."""
    assert split_files(tmp_path / name) == (tmp_path / name,)


def test_a_renamed_first_part_is_refused(tmp_path: Path) -> None:
    """The engine trusts ``split.count`` in the header and finds the parts by name: both must agree."""
    renamed = write_parts(tmp_path, "big", 3)[0].rename(tmp_path / "big.gguf")
    with pytest.raises(ModelFileError, match="part 1 of 1 by its name, but part 1 of 3 by its header"):
        read_metadata((renamed,))


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    """Swapped parts, and parts that lack tensors, are found by their marks."""
    first, second, third = write_parts(tmp_path, "big", 3)
    with pytest.raises(ModelFileError, match="part 3 of 3"):
        read_metadata((first, third, second))
    marks = {"split.no": Typed("u16", 2), "split.count": Typed("u16", 3)}
    write_gguf(third, marks, [Tensor("x"), Tensor("y")])
    with pytest.raises(ModelFileError, match="hold 4 tensors, its header promises 3"):
        read_metadata((first, second, third))


def test_a_broken_later_part_breaks_the_model(tmp_path: Path) -> None:
    """Every part is looked at, and the reason names the part."""
    parts = write_parts(tmp_path, "big", 2)
    parts[1].write_bytes(parts[1].read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"big-00002-of-00002.gguf is .* its header promises"):
        read_metadata(parts)
