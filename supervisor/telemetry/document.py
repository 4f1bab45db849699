"""Writes ``docs/metrics.md`` from the table of families: ``python -m supervisor.telemetry.document``."""

from __future__ import annotations

from pathlib import Path

from supervisor.telemetry.counts import SECONDS, TOKEN_SECONDS
from supervisor.telemetry.families import FAMILIES, PREFIX, Family

TARGET = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

_HEAD = """\
# Metrics

`/metrics` in Prometheus' text form. Made by `python -m supervisor.telemetry.document`; a test holds it fresh.

`model` is a model's id once it was used, at most 256 of them; `other` stands for what is beyond, and for names that
only clients know; it is empty for requests that asked for no model. `build`, `pool` and `code` are bounded the same
way. A figure that is not known has no series. `deploy/prometheus/` has a scrape config and alerts, `deploy/grafana/`
a board. Who may read it: [api.md](api.md#who-may-ask).

| metric | kind | labels | what | made of |
|---|---|---|---|---|
"""

_TAIL = """
Buckets, in seconds: {seconds}; of `token_seconds`: {token_seconds}.

Of the daemon itself: `process_resident_memory_bytes`, `process_start_time_seconds`, `process_cpu_seconds_total`.

## Of the engines themselves

What a ready engine tells at its own address for metrics is added with the label `model`, at most 200 series of each;
one that does not answer within a second is left out that time. llama-server's begin with `llamacpp:`, such as
`llamacpp:prompt_tokens_total`, `llamacpp:predicted_tokens_seconds`, `llamacpp:kv_cache_usage_ratio`; which there are
is the build's matter, and they begin anew with each launch.
"""


def document() -> str:
    """The whole file."""
    rows = "".join(map(_row, FAMILIES))
    return _HEAD + rows + _TAIL.format(seconds=_list(SECONDS), token_seconds=_list(TOKEN_SECONDS))


def _row(family: Family) -> str:
    name = PREFIX + family.name + ("_total" if family.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{name}` | {family.kind} | {labels} | {family.text} | {family.source} |\n"


def _list(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
