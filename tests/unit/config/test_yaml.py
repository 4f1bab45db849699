from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from supervisor.config.yaml import read_yaml
from tests.unit.config.helpers import ENV, good, only, problems


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1:30", "base 60"),
        ("1:30:00.5", "base 60"),
        ("010", "octal"),
        ("1_000", "underscores"),
        ("2024-01-01", "date"),
        (".inf", "plain decimal"),
        ("0b11", "plain decimal"),
    ],
)
def test_what_yaml_1_1_reads_as_something_else_is_a_problem(written: str, said: str) -> None:
    """``1:30`` is 90 and ``010`` is 8 for one reader, text for the next."""
    problem = only(f"version: 1\nlisten:\n  port: {written}\n")
    assert (problem.path, problem.line) == ("listen.port", 3)
    assert said in problem.message
    assert "quote it" in (problem.suggestion or "")


@pytest.mark.parametrize("written", ["no", "on", "1.10", "0", "7"])
def test_text_that_yaml_reads_as_another_type_should_be_quoted(written: str) -> None:
    """``aliases: [no]`` is false; quoted it is text."""
    problem = only(f"version: 1\nmodels: {{m: {{file: m, aliases: [{written}]}}}}")
    assert problem.path == "models.m.aliases[0]"
    assert problem.suggestion == "quote it"
    assert good(f"{{version: 1, models: {{m: {{file: m, aliases: ['{written}']}}}}}}").models["m"].aliases == (written,)


@pytest.mark.parametrize("key", ["1.10", "no", "~", "0"])
def test_a_name_that_is_not_text_to_yaml_should_be_quoted(key: str) -> None:
    """A model called 1.10 would be 1.1 elsewhere."""
    problem = only(f"version: 1\nmodels:\n  {key}: {{file: m}}\n")
    assert problem.suggestion == f'quote it: "{key}"'
    assert problem.line == 3


def test_duplicate_keys_are_problems_with_both_lines() -> None:
    """YAML readers keep the last one and say nothing."""
    problem = only("version: 1\nlisten:\n  port: 1\n  host: 127.0.0.1\n  port: 2\n")
    assert (problem.path, problem.line) == ("listen.port", 5)
    assert "line 3" in problem.message


def test_what_is_below_a_duplicate_key_is_still_checked() -> None:
    """Every problem at once, also under a key that is there twice."""
    found = problems("version: 1\nmodels: {m: {fil: x, file: m}}\nmodels: {}\n")
    assert [problem.path for problem in found] == ["models.m.fil", "models"]


def test_merge_keys_work_and_own_keys_win() -> None:
    """Anchors spare repetition; a merged key is not a duplicate."""
    config = good(
        """
        version: 1
        models:
          a: &base {file: a.gguf, keep_alive: 1m, pinned: true}
          b: {<<: *base, file: b.gguf}
        """
    )
    assert (config.models["b"].file, config.models["b"].keep_alive) == (type(config.state_dir)("b.gguf"), 60.0)


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: b: c",
        "\tversion: 1",
        "version: 1\n--- \nversion: 1",
        "a: *nowhere",
        "a: 'x",
        "? [1]\n: 2",
        "a: !!python/object/apply:os.system [ls]",
        "a: !own x",
        "a: !!bool perhaps",
        "a: !!binary aGk=",
        "a: &a [*a]",
        "<<: 3",
        "a: =",
        "[" * 5000,
        "a: " + "[" * 100 + "]" * 100,
        '"\\0": 1',
        'a: "\\0"',
        "%YAML 9",
        "a: 999999999999999999999999",
    ],
)
def test_broken_or_hostile_yaml_is_a_problem_with_a_line(text: str) -> None:
    """Each says what is wrong; none ends in an exception or runs anything."""
    for problem in problems(text.encode()):
        assert problem.message
        assert problem.line is not None or problem.path == "version"


def test_aliases_that_multiply_are_stopped() -> None:
    """Nine lines would make a thousand million values."""
    bomb = "version: 1\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    for level in range(1, 10):
        bomb += f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n"
    assert any("multiply" in problem.message for problem in problems(bomb))


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01\x00\xff\xfe", b"\xff\xfev\x00e\x00", b"GGUF\x03\x00\x00\x00"])
def test_binary_is_not_taken_for_a_config(data: bytes) -> None:
    """A wrong path on the command line is the usual reason."""
    assert "is this a config?" in problems(data)[0].message


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n", b"~", b"\xef\xbb\xbf"])
def test_an_empty_file_says_so(data: bytes) -> None:
    """An empty file is more likely a slip than a wish for defaults."""
    assert problems(data)[0].message == "is empty"


@pytest.mark.parametrize("data", [b"- version: 1", b"[]", b"just text", b"7"])
def test_the_top_must_be_a_section(data: bytes) -> None:
    """A list or a single value at the top is no config."""
    assert "must be a section of keys" in problems(data)[0].message


def test_environment_variables_are_filled_in() -> None:
    """In any text, whole or in part; ``$${`` is a plain ``${``."""
    env = {**ENV, "PORT": "9000", "NAME": "box"}
    config = good(
        """
        version: 1
        listen: {port: "${env:PORT}", hosts: ["${env:NAME}.lan"]}
        model_dirs: ["/$${env:NAME}"]
        """,
        env,
    )
    assert config.listen.port == 9000
    assert config.listen.hosts == ("box.lan",)
    assert config.model_dirs == (Path("/${env:NAME}"),)


def test_a_variable_that_is_not_set_is_a_problem_that_shows_no_other_value() -> None:
    """The text of an error ends in logs: values of other variables must not be in it."""
    env = {**ENV, "GOOD": "s3cret-good-value"}
    text = "version: 1\nengines: {llama.cpp: {env: {A: '${env:GOOD}', B: '${env:MISSING}'}}}\n"
    problem = only(text, env)
    assert problem.path == "engines.llama.cpp.env.B"
    assert "MISSING" in problem.message
    assert "s3cret" not in str(problem)


@pytest.mark.parametrize("written", ["${HOME}/x", "${env:}", "${env:A B}", "${env:OPEN", "${file:x}"])
def test_other_forms_of_substitution_are_problems(written: str) -> None:
    """Silently taken as text they would make a folder called ``${HOME}``."""
    assert "${env:NAME}" in only(f'version: 1\nstate_dir: "{written}"').message


def test_the_slow_reader_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libyaml is missing, the answer is the same."""
    text = b"version: 1\na: {b: [1, no, 'x'], c: 1:30}\na: 2\n"
    fast = read_yaml(text, {})
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert read_yaml(text, {}) == fast
    assert read_yaml(b"[" * 5000, {}).problems
