"""MLX behind the gateway, as applications meet it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support.daemon import Daemon
from tests.wire.asking import ask, instance, said, sdk

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

QUESTION: Any = {"model": "smol", "messages": said("Hello"), "temperature": 0, "max_tokens": 12}


def test_errors_reach_the_sdk(mlx_daemon: Daemon) -> None:
    """What the server refuses is the client's error, with OpenAI's code where there is one."""
    with sdk(mlx_daemon) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="smol", messages=said("word " * 5000))
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="smol", prompt="a", extra_body={"stop": [5]})


def test_plan_and_status(mlx_daemon: Daemon) -> None:
    """The plan says what MLX takes, and the status what was seen: the weights to the byte."""
    row = instance(mlx_daemon, "smol")
    plan = row["plan"]
    assert plan["engine"] == "mlx"
    assert "--ctx-size" in plan["argv"]
    memory = row["memory"]["host"]
    assert memory["declared"] is not None
    planned = ask(mlx_daemon, "/admin/v1/plan?model=smol").json
    parts = planned["memory"]["host"]
    assert 2_000_000 < parts["weights"] < 3_000_000
    # 2 layers, 2 heads of 64 numbers, keys and values, 2 bytes each, 2,048 tokens, 2 at once.
    assert parts["kv"] == 2 * 2 * 64 * 2 * 2 * 2048 * 2
    assert planned["fits"]
    reasons = {choice["choice"]: choice["reason"] for choice in planned["rationale"]}
    assert "ctx_size" in reasons
    assert "slots" in reasons
    assert "a token takes 512 bytes in each of 2 layers; 2048 tokens, 2 at once" in reasons["kv"]
    assert not {"cache_type", "n_gpu_layers", "threads_batch"} & reasons.keys(), "settings that MLX does not have"


def test_prediction_is_not_below_what_is_seen(mlx_daemon: Daemon) -> None:
    """A launch takes no more than was promised to it."""
    with sdk(mlx_daemon) as client:
        client.chat.completions.create(**QUESTION)
    memory = instance(mlx_daemon, "smol")["memory"]["host"]
    assert memory["observed"] is None or memory["observed"] < memory["predicted"] + 2**26
