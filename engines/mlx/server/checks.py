"""From a body to ``Asked``: everything is checked before the engine sees any of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.mlx.server.asked import Asked, ModelLimits, Prompt, Sampling, Wishes
from engines.mlx.server.chat_checks import read_chat
from engines.mlx.server.fields import Fields
from engines.mlx.server.problems import NOT_FOUND, RequestError

MAX_CHOICES = 16
MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_TOP_LOGPROBS = 20
MAX_DEPTH = 64
_MAX_BIASES = 1024
_MOST_BIAS = 100.0
_MOST_PENALTY = 2.0
_SEED_BITS = 64
# A colder one divides scores by so little that they overflow; it is the likeliest token then anyway.
_COLDEST = 1e-3
_DEFAULT_MODEL = "default_model"
_REFUSED = {
    "adapters": "this server runs one model, as it was started",
    "draft_model": "the draft model is given at the start",
    "role_mapping": "roles are what the model's own template makes of them",
    "grammar": "give `response_format` with a JSON schema instead",
    "suffix": "text can't be filled in between two others here",
}


def read_chat_request(body: object, limits: ModelLimits) -> Asked:
    """A chat.

    Raises:
        RequestError: anything in it is wrong.
    """
    members = members_of(body, limits)
    if not limits.has_template:
        raise RequestError("this model has no chat template: ask /v1/completions with a whole prompt.")
    fields = Fields(members)
    top = None
    if fields.flag("logprobs"):
        top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
    elif members.get("top_logprobs"):
        raise fields.wrong("top_logprobs", "needs `logprobs: true` beside it")
    return Asked(_wishes(fields, limits, top), chat=read_chat(fields))


def read_completion_request(body: object, limits: ModelLimits) -> Asked:
    """A text that is gone on with.

    Raises:
        RequestError: anything in it is wrong.
    """
    members = members_of(body, limits)
    fields = Fields(members)
    if fields.flag("echo"):
        raise fields.wrong("echo", "is not supported: leave it out")
    wishes = _wishes(fields, limits, _completion_logprobs(fields))
    best_of = fields.integer("best_of", 1, MAX_CHOICES)
    if best_of is not None and best_of != wishes.choices:
        raise fields.wrong("best_of", f"must be left out, or equal to n, which is {wishes.choices}")
    return Asked(wishes, prompts=read_prompts(fields, "prompt", limits.vocabulary))


def read_prompts(fields: Fields, key: str, vocabulary: int) -> tuple[Prompt, ...]:
    """A text, or several; a list of tokens, or several. None of them is empty.

    Raises:
        RequestError: it is anything else.
    """
    value = fields.raw(key)
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value and all(_is_token(item) for item in value):
        prompts = [value]
    elif isinstance(value, list) and value and all(isinstance(item, str | list) for item in value):
        prompts = value
    else:
        raise fields.wrong(key, "must be a text, a list of tokens, or a list of either")
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"`{key}` holds {len(prompts)} prompts; {MAX_PROMPTS} are the most.", param=key)
    return tuple(_prompt(prompt, fields, key, vocabulary) for prompt in prompts)


def _prompt(value: Any, fields: Fields, key: str, vocabulary: int) -> Prompt:
    if not value:
        raise fields.wrong(key, "must not be empty")
    if isinstance(value, str):
        return value
    if not all(_is_token(item) and 0 <= item < vocabulary for item in value):
        raise RequestError(f"`{key}` must hold tokens from 0 to {vocabulary - 1}.", param=key)
    return tuple(value)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def members_of(body: object, limits: ModelLimits) -> Mapping[str, Any]:
    """The body as an object, asked of this model.

    Raises:
        RequestError: it is none, or another model is meant.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object.")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise Fields(body).wrong("model", "must be a string")
    if model not in {None, "", _DEFAULT_MODEL, limits.name}:
        raise RequestError(
            f"this server runs {limits.name!r} alone, not {model[:100]!r}.",
            status=NOT_FOUND,
            kind="not_found_error",
            param="model",
        )
    for key, why in _REFUSED.items():
        if body.get(key) not in (None, "", [], {}, False):
            raise RequestError(f"`{key}` can't be given: {why}.", param=key)
    return body


def _wishes(fields: Fields, limits: ModelLimits, top_logprobs: int | None) -> Wishes:
    options = fields.object("stream_options")
    return Wishes(
        sampling=_sampling(fields, limits.vocabulary),
        max_tokens=_max_tokens(fields),
        choices=fields.integer("n", 1, MAX_CHOICES) or 1,
        stop=_stops(fields),
        top_logprobs=top_logprobs,
        stream=fields.flag("stream"),
        include_usage=options is not None and Fields(options, "stream_options.").flag("include_usage"),
        progress=fields.flag("return_progress"),
        timings_per_token=fields.flag("timings_per_token"),
        ignore_eos=fields.flag("ignore_eos"),
        cache_prompt=fields.flag("cache_prompt", default=True),
        mode=_mode(fields),
        depth=_depth(fields),
    )


def _max_tokens(fields: Fields) -> int | None:
    """The first that is given of its names; -1 for no bound."""
    for key in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = fields.integer(key, -1, 2**31 - 1)
        if value == 0:
            raise fields.wrong(key, "must be at least 1")
        if value is not None:
            return None if value < 0 else value
    return None


def _sampling(fields: Fields, vocabulary: int) -> Sampling:
    temperature = fields.number("temperature", 1.0, 0.0, 100.0)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    top_k = fields.integer("top_k", -1, 2**31 - 1) or 0
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    penalty_key = "repeat_penalty" if fields.raw("repetition_penalty") is None else "repetition_penalty"
    # The nucleus of nothing is its likeliest token, and so is the best one of one.
    greedy = temperature < _COLDEST or top_p == 0.0 or top_k == 1
    return Sampling(
        temperature=0.0 if greedy else temperature,
        top_p=top_p,
        top_k=top_k if 0 < top_k < vocabulary else 0,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        seed=None if seed is None else seed % 2**_SEED_BITS,
        repetition_penalty=fields.number(penalty_key, 1.0, 0.01, 10.0),
        penalty_window=fields.integer("repetition_context_size", 0, 2**20) or 64,
        presence_penalty=fields.number("presence_penalty", 0.0, -_MOST_PENALTY, _MOST_PENALTY),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -_MOST_PENALTY, _MOST_PENALTY),
        logit_bias=_logit_bias(fields, vocabulary),
    )


def _logit_bias(fields: Fields, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Token and bias, from an object (``{"42": -100}``) or a list of pairs."""
    value = fields.raw("logit_bias")
    if value is None:
        return ()
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or len(pairs) > _MAX_BIASES:
        raise fields.wrong("logit_bias", f"must be an object of at most {_MAX_BIASES} tokens and numbers")
    biases: dict[int, float] = {}
    for pair in pairs:
        token, bias = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)  # noqa: PLR2004  a pair
        number = _token_number(token)
        amount = _bias(bias)
        if number is None or not 0 <= number < vocabulary or amount is None:
            rule = f"must name tokens from 0 to {vocabulary - 1}, with numbers from -100 to 100"
            raise fields.wrong("logit_bias", rule)
        biases[number] = amount
    return tuple(biases.items())


def _token_number(token: object) -> int | None:
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) <= 10:  # noqa: PLR2004  of 32 bits
        return int(token)
    return token if isinstance(token, int) and not isinstance(token, bool) else None


def _bias(bias: object) -> float | None:
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -_MOST_BIAS <= bias <= _MOST_BIAS:
        return None
    return float(bias)


def _stops(fields: Fields) -> tuple[str, ...]:
    """Stop strings; empty ones stop nothing."""
    value = fields.raw("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", f"must be a string or a list of at most {MAX_STOPS} strings")
    if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise fields.wrong("stop", f"must hold at most {MAX_STOP_LENGTH} characters each")
    return tuple(dict.fromkeys(stop for stop in stops if stop))


def _completion_logprobs(fields: Fields) -> int | None:
    """In completions it is a number of alternatives; true asks for none beside the token."""
    if isinstance(fields.raw("logprobs"), bool):
        return 0 if fields.raw("logprobs") else None
    return fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)


def _mode(fields: Fields) -> Any:
    """``mtp`` or ``ar``; whatever else is there changes nothing."""
    mode = fields.raw("generation_mode")
    return mode if mode in ("mtp", "ar") else None


def _depth(fields: Fields) -> int | None:
    """A whole number from 1 to 64; whatever else is there changes nothing."""
    depth = fields.raw("mtp_depth")
    return depth if _is_token(depth) and 1 <= depth <= MAX_DEPTH else None
