from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from supervisor.telemetry.engine_text import merge

LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 12
# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.25
"""


def test_two_engines_are_one_text_with_a_label_for_each() -> None:
    """A family may stand there only once: a scraper refuses the whole text otherwise."""
    text = merge([("a", LLAMA), ('b"\\', LLAMA.replace("12", "7"))]).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"llamacpp:prompt_tokens", "llamacpp:kv_cache_usage_ratio"}
    samples = families["llamacpp:prompt_tokens"].samples
    assert [(sample.labels["model"], sample.value) for sample in samples] == [("a", 12), ('b"\\', 7)]
    assert text.count("# TYPE llamacpp:prompt_tokens_total counter") == 1


def test_an_engines_own_labels_stay() -> None:
    """They come after ours."""
    text = merge([("m", 'x_total{slot="1",why="a\\"b"} 3 1700000000000\n')]).decode()
    assert text == 'x_total{model="m",slot="1",why="a\\"b"} 3\n'


def test_what_an_engine_invents_does_not_mix_with_ours() -> None:
    """Nor is a line that is no sample passed on; and there is a bound on how many are."""
    bad = 'enginehouse_requests_total 5\nprocess_cpu_seconds_total 1\nx{y} 1\nx{a="b" 1\nx one\n{} 1\nx 1 2 3\n\x00\n'
    assert merge([("m", bad)]) == b""
    assert merge([("m", "".join(f"f{number} 1\n" for number in range(5000)))]).count(b"\n") == 200


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=200)), max_size=3))
def test_any_text_gives_a_text_that_parses(texts: list[tuple[str, str]]) -> None:
    """An engine is another program: whatever it says, the daemon's own numbers must stay readable."""
    list(text_string_to_metric_families(merge(texts).decode()))


@given(
    st.lists(
        st.builds(
            "{}{} {}\n".format,
            st.sampled_from(["a", "a_total", "a_bucket", "b:c", "# TYPE a", "# HELP a"]),
            st.sampled_from(["", "{}", '{x="y"}', '{x="y",}', '{x="\\n"}', '{x="}"}', "{x=y}"]),
            st.sampled_from(["1", "-1.5e3", "NaN", "+Inf", "counter", "x y", ""]),
        ),
        max_size=12,
    )
)
def test_near_misses_of_the_form_parse_too(lines: list[str]) -> None:
    """As above, with texts that are nearly right."""
    list(text_string_to_metric_families(merge([("m", "".join(lines)), ("n", "".join(lines))]).decode()))
