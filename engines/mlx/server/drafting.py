"""Loads a draft model, or says once why nothing is guessed ahead."""

from __future__ import annotations

import logging
from typing import Any

from engines.mlx.server.loading import Loaded
from engines.mlx.server.options import Options
from engines.mlx.server.speculation import Drafter, off_reason

_log = logging.getLogger(__name__)


def load_drafter(options: Options, loaded: Loaded) -> tuple[Drafter | None, str]:
    """The draft model, or None with the reason: one that is no good never keeps the model from being served."""
    if options.draft_model is None:
        return None, "no draft model was given"
    try:
        drafter, reason = _load(options, loaded)
    except Exception as error:  # noqa: BLE001  see above
        drafter, reason = None, f"the draft model can't be loaded: {error}"
    if reason:
        _log.info("[spec] off (%s)", reason)
        return None, reason
    _log.info("[spec] on: %s is %d tokens ahead", options.draft_model.name, options.draft_tokens)
    return drafter, ""


def _load(options: Options, loaded: Loaded) -> tuple[Drafter | None, str]:
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415  loaded by now
    from mlx_lm.utils import load  # noqa: PLC0415

    from engines.mlx.server.dense import on_the_host  # noqa: PLC0415

    assert options.draft_model is not None
    model, tokenizer = load(str(options.draft_model), tokenizer_config={"trust_remote_code": False})
    on_the_host(model)
    layers: list[Any] = make_prompt_cache(loaded.model, options.max_kv_size)
    sizes = (len(loaded.tokenizer), len(tokenizer))
    reason = off_reason(layers, make_prompt_cache(model), sizes)
    return (None if reason else Drafter(model, options.draft_tokens)), reason
