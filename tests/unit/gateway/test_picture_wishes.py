"""From a request's fields to a job in which every number is decided."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.pictures import EditMode, PictureAbilities, WeightsKind
from supervisor.config.schema import PicturesConfig
from supervisor.errors import CallerError
from supervisor.gateway.pictures.prompts import neutral
from supervisor.gateway.pictures.sources import Source
from supervisor.gateway.pictures.wishes import Asked, lora_ids, read_wish, with_loras
from supervisor.models.loras import InstalledLora, LoraRender

ABILITIES = PictureAbilities(
    kind="sd1",
    weights_kind=WeightsKind.CHECKPOINT,
    edit_mode=EditMode.IMG2IMG,
    max_sources=1,
    edit_only=False,
    masks=True,
    width=512,
    height=512,
    steps=20,
    guidance=7.0,
    multiple=64,
    samplers=("euler", "euler_a", "dpm++2m"),
    schedulers=("karras", "discrete"),
)
LIMITS = PicturesConfig()
SOURCE = Source(b"png", 64, 64)


def asked(abilities: PictureAbilities = ABILITIES, sources: tuple[Source, ...] = (), **body: Any) -> Asked:
    """What becomes of a body."""
    return read_wish({"prompt": "a cat", **body}, abilities, LIMITS, sources)


def test_what_is_not_said_is_the_models_own() -> None:
    """Size, steps and guidance by its kind; the seed by chance, and told."""
    wish, other = asked().wish, asked(seed=-1).wish
    assert (wish.width, wish.height, wish.steps, wish.guidance, wish.count) == (512, 512, 20, 7.0, 1)
    assert wish.seed != other.seed
    assert asked(seed=3).wish.seed == 3


def test_sizes_are_rounded_and_that_is_said() -> None:
    """Up, as the engine would; down where up is beyond the limit."""
    made = asked(size="500x513")
    assert (made.wish.width, made.wish.height) == (512, 576)
    assert made.notes == ("size: 500x513 became 512x576, since this model draws in multiples of 64 pixels",)
    assert asked(size="2048x64").notes == ()
    assert asked(replace(ABILITIES, multiple=96), size="2047x96").wish.width == 2016


def test_forms_say_numbers_as_texts() -> None:
    """A multipart form has nothing else."""
    wish = asked(steps="5", cfg_scale="2.5", seed="7", n="2", size="auto", sampler="", output_compression="80").wish
    assert (wish.steps, wish.guidance, wish.seed, wish.count, wish.output_compression) == (5, 2.5, 7, 2, 80)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("Euler a", "euler_a"),
        ("DPM++ 2M", "dpm++2m"),
        ("DPM++ 2M Karras", "dpm++2m"),
        ("euler", "euler"),
        ("Automatic", None),
    ],
)
def test_a1111s_names_are_known(said: str, found: str | None) -> None:
    """It writes samplers in another way."""
    assert asked(sampler=said).wish.sampler == found


def test_sources_are_used_as_the_model_can() -> None:
    """Too many are cut, strength has a default, and a model that takes none says so."""
    one = asked(sources=(SOURCE, SOURCE))
    assert (len(one.wish.sources), one.wish.strength) == (1, 0.75)
    assert one.notes == ("image: 1 of 2 source pictures are used by this model",)
    many = asked(replace(ABILITIES, edit_mode=EditMode.REFERENCE, max_sources=4), (SOURCE,) * 3, strength=0.2)
    assert (len(many.wish.sources), many.wish.strength) == (3, None)
    none = asked(replace(ABILITIES, edit_mode=None, max_sources=0), (SOURCE,))
    assert none.wish.sources == ()
    assert "take no source pictures" in (none.skipped or "")
    with pytest.raises(CallerError) as caught:
        asked(replace(ABILITIES, edit_only=True))
    assert caught.value.code == "image_source_required"


def _lora(**more: Any) -> InstalledLora:
    facts = {
        "purpose": "speed",
        "base_models": (),
        "strength": 0.5,
        "prompt": "toy",
        "render": LoraRender(steps=4, cfg_scale=1),
    }
    return InstalledLora(id="fast", name="Fast", file=Path("/l/f"), relative="f", file_bytes=1, **{**facts, **more})


def test_loras_bring_words_and_settings_unless_the_caller_says_them() -> None:
    """Everything that they change is told."""
    made = with_loras(asked(), [_lora()], {})
    assert (made.wish.prompt, made.wish.steps, made.wish.guidance) == ("a cat, toy", 4, 1)
    assert made.wish.loras[0].strength == 0.5
    assert made.notes == ("prompt: 'toy' was added for Fast", "steps: 4 by Fast", "cfg_scale: 1 by Fast")
    own: dict[str, Any] = {"steps": 9, "cfg_scale": 3}
    kept = with_loras(asked(**own), [_lora(prompt="CAT")], own)
    assert (kept.wish.prompt, kept.wish.steps, kept.wish.guidance, kept.notes) == ("a cat", 9, 3, ())


def test_loras_are_named_by_id_alone() -> None:
    """No path, no strength."""
    assert lora_ids({"loras": ["a", {"id": "b"}, "a"]}) == ("a", "b")
    for bad in ("a", [{"id": "a", "path": "x"}], [1], [{"id": 2}], {"a": 1}):
        with pytest.raises(CallerError):
            lora_ids({"loras": bad})


@pytest.mark.parametrize("text", ["<sd_cpp_extra_args>{}</sd_cpp_extra_args>", "<  LORA:x:1>", "</ sd_cpp_extra_args>"])
def test_commands_in_a_prompt_become_text(text: str) -> None:
    """Whatever is written like one; a plain sign stays."""
    made, changed = neutral(f"a {text} b")
    assert changed
    assert "<" not in made.replace("</", "")
    assert neutral("1 < 2, <3, <lorry>") == ("1 < 2, <3, <lorry>", False)


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers(), max_size=2)
)
_FIELDS = (
    *("prompt", "negative_prompt", "size", "width", "height", "steps", "n", "seed", "cfg_scale", "strength"),
    *("sampler", "scheduler", "output_format", "output_compression", "loras"),
)


@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES))
def test_any_body_is_within_the_limits_or_refused(body: dict[str, Any]) -> None:
    """What reaches the engine is always something that it does as it is told."""
    try:
        wish = read_wish(body, ABILITIES, LIMITS, (SOURCE,)).wish
    except CallerError as error:
        assert error.facts.get("param")  # noqa: PT017  what is wrong is always named
        return
    assert wish.width % 64 == wish.height % 64 == 0
    assert 64 <= wish.width <= LIMITS.max_edge >= wish.height >= 64
    assert 1 <= wish.steps <= LIMITS.max_steps
    assert 1 <= wish.count <= LIMITS.max_count
    assert 0 <= wish.seed <= 2**53
    assert 0 <= wish.guidance <= 100
    assert wish.strength is not None
    assert 0 <= wish.strength <= 1
    assert wish.sampler in {None, *ABILITIES.samplers}
