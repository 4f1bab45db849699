from __future__ import annotations

from typing import Any

import pytest

from supervisor.gateway.a1111_fields import named_model, notes_of, wish_of


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, None),
        ({"batch_size": 2}, 2),
        ({"n_iter": 3}, 3),
        ({"batch_size": 2, "n_iter": 3}, 6),
        ({"batch_size": 2, "n_iter": 1}, 2),
        ({"batch_size": 2, "n_iter": "x"}, "x"),
        ({"batch_size": "x", "n_iter": 3}, "x"),
        ({"n_iter": True}, True),
    ],
)
def test_rounds_times_pictures_a_round(body: dict[str, Any], count: object) -> None:
    """`n_iter` rounds of `batch_size`; what is no number is handed on, to be refused by its name."""
    wish = wish_of(body, with_source=False)
    assert wish.get("n") == count
    assert type(wish.get("n")) is type(count)


@pytest.mark.parametrize(
    ("body", "scheduler"),
    [
        ({"sampler_name": "DPM++ 2M Karras"}, "karras"),
        ({"sampler_name": "DPM++ 2M Karras", "scheduler": "discrete"}, "discrete"),
        ({"sampler_name": "Euler a"}, None),
    ],
)
def test_a_schedule_within_a_samplers_name(body: dict[str, Any], scheduler: str | None) -> None:
    """As A1111 once named both together. Prevents: the schedule was left out without a word."""
    assert wish_of(body, with_source=False).get("scheduler") == scheduler


def test_strength_is_for_a_source() -> None:
    """Some send it with every request."""
    body = {"denoising_strength": 0.4}
    assert wish_of(body, with_source=True) == {"strength": 0.4}
    assert wish_of(body, with_source=False) == {}


def test_what_is_not_done_is_said() -> None:
    """Each field that would change the picture, if it is set to something; masks have some of their own."""
    body = {
        "tiling": True,
        "enable_hr": False,
        "styles": ["oil"],
        "s_noise": 1.0,
        "eta": 0.0,
        "mask_blur": 4,
        "override_settings": {"sd_model_checkpoint": "m", "CLIP_stop_at_last_layers": 2},
    }
    said = {note.partition(":")[0] for note in notes_of(body, masked=False)}
    assert said == {"tiling", "styles", "eta", "override_settings.CLIP_stop_at_last_layers"}
    assert "mask_blur: is not done here" in notes_of(body, masked=True)
    assert named_model(body) == "m"


@pytest.mark.parametrize("body", [{}, {"override_settings": None}, {"override_settings": [1]}, {"styles": []}])
def test_nothing_is_said_of_nothing(body: dict[str, Any]) -> None:
    """Whatever shape it has."""
    assert notes_of(body, masked=True) == ()
    assert named_model(body) is None
