"""``/metrics``: a few sums, written by hand, since the child's interpreter needs no library for them."""

from __future__ import annotations

from engines.mlx.server.memory import memory_document
from engines.mlx.server.service import Service

_PREFIX = "mlx_server_"


def metrics_text(service: Service) -> str:
    """Prometheus text."""
    tally = service.tally
    rows: list[tuple[str, str, float | int | None, str]] = [
        ("requests_total", "counter", tally.requests, "answers that were begun"),
        ("refused_total", "counter", tally.refused, "requests that were wrong"),
        ("abandoned_total", "counter", tally.abandoned, "answers whose client left"),
        ("pauses_total", "counter", tally.pauses, "answers that waited for a client that did not read"),
        ("prompt_tokens_total", "counter", tally.prompt_tokens, "tokens of prompts"),
        ("cached_tokens_total", "counter", tally.cached_tokens, "of them, found in the cache"),
        ("answer_tokens_total", "counter", tally.answer_tokens, "tokens of answers"),
        ("drafted_tokens_total", "counter", tally.drafted_tokens, "of them, from the draft model"),
        ("prompt_seconds_total", "counter", tally.prompt_seconds, "time to the first token, summed"),
        ("answer_seconds_total", "counter", tally.answer_seconds, "time from the first token to the last, summed"),
        ("answers_running", "gauge", service.answering, "answers that are computed, or wait to be"),
    ]
    texts = {
        "active_bytes": "bytes that MLX uses",
        "cache_bytes": "bytes that MLX keeps for itself",
        "peak_bytes": "the most bytes that MLX has used",
        "weights_bytes": "bytes of the weights",
        "prefix_bytes": "bytes kept for prompts that may come again",
        "prefix_budget_bytes": "the most of those",
    }
    memory = memory_document(service)
    rows += [(f"memory_{key}", "gauge", memory[key], text) for key, text in texts.items()]
    lines = []
    for name, kind, value, text in rows:
        if value is not None:
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}", f"{_PREFIX}{name} {value}"]
    return "\n".join(lines) + "\n"
