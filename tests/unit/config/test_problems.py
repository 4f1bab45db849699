from __future__ import annotations

import pytest

from supervisor.config.problems import Found, Problem, path_text, to_problems
from supervisor.config.schema import Config
from supervisor.config.suggest import keys_at
from tests.unit.config.helpers import ENV, good, only, problems


@pytest.mark.parametrize(
    ("text", "path", "suggestion"),
    [
        ("listn: {}", "listn", "did you mean listen?"),
        ("listen: {prot: 1}", "listen.prot", "did you mean port?"),
        ("models: {q: {file: x, launch: {ctx_sise: 1}}}", "models.q.launch.ctx_sise", "did you mean ctx_size?"),
        ("models: {q: {file: x, launch: {ctx-size: 1}}}", "models.q.launch.ctx-size", "did you mean ctx_size?"),
        (
            "engines: {llama.cpp: {defaults: {cache-typ: f16}}}",
            "engines.llama.cpp.defaults.cache-typ",
            "did you mean cache_type?",
        ),
        ("supervision: {quarantine: {strike: 1}}", "supervision.quarantine.strike", "did you mean strikes?"),
        ("host: {devices: {CUDA0: {reserved: 1GiB}}}", "host.devices.CUDA0.reserved", "did you mean reserve?"),
    ],
)
def test_an_unknown_key_comes_with_the_nearest_one_of_its_place(text: str, path: str, suggestion: str) -> None:
    """A typo is answered with the key that was meant."""
    problem = only(f"{{version: 1, {text}}}")
    assert (problem.path, problem.message, problem.suggestion) == (path, "unknown key", suggestion)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("port: 8081", "listen.port"),
        ("models: {q: {file: x, ctx_size: 4096}}", "models.q.launch.ctx_size"),
        ("models: {q: {file: x, launch: {keep_alive: 5m}}}", "models.q.keep_alive"),
        ("supervision: {grace: 5s}", "supervision.stop.grace"),
        ("engines: {llama.cpp: {cache_type: f16}}", "engines.llama.cpp.defaults.cache_type"),
        ("callers: []", "auth.callers"),
        ("max_wait: 5s", "broker.queue.max_wait"),
    ],
)
def test_a_key_that_is_right_elsewhere_says_where(text: str, place: str) -> None:
    """A right key at the wrong level is the commonest slip after the typo."""
    assert only(f"{{version: 1, {text}}}").suggestion == f"write it as {place}"


def test_a_key_that_looks_like_nothing_gets_the_list() -> None:
    """Better than no advice."""
    assert only("{version: 1, shutdown: {zzz: 1}}").suggestion == "known here: drain, total"


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    """One look, one correction: YAML's problems, each value's and those between values."""
    found = problems(
        """\
        version: 1
        listn: {}
        listen: {port: 1:30}
        models:
          a: {file: a, keep_alive: 10, launch: {slots: many}}
          b: {aliases: [a]}
          b: {}
        broker: {queue: {total: 0}}
        shutdown: {drain: 20s}
        """
    )
    assert [(problem.line, problem.path) for problem in found] == [
        (2, "listn"),
        (3, "listen.port"),
        (5, "models.a.keep_alive"),
        (5, "models.a.launch.slots"),
        (6, "models.b.aliases[0]"),
        (6, "models.b.file"),
        (7, "models.b"),
        (8, "broker.queue.total"),
        (9, "shutdown"),
    ]


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("models: [a]", "models", "must be a section of keys (name: value)"),
        ("models: {q: gguf}", "models.q", "must be a section of keys (name: value)"),
        ("model_dirs: /models", "model_dirs", "must be a list, such as [a, b]"),
        ("listen: {port: 70000}", "listen.port", "must be less than or equal to 65535"),
        ("host: {cpu_share: al}", "host.cpu_share", "must be one of: split, exclusive"),
        ("engines: {vllm: {}}", "engines.vllm", "unknown engine, known: llama.cpp"),
        ("models: {q: {engine: vllm, file: x}}", "models.q.engine", "must be "),
        ("models: {q: {file: x, launch: {slots: 1.5}}}", "models.q.launch.slots", "must be a whole number"),
        ("models: {'a b': {file: x}}", "models.'a b'", "must be without blanks and control characters"),
        ("engines: {llama.cpp: {builds: [{name: a}]}}", "engines.llama.cpp.builds[0].executable", "is missing"),
        ("auth: {callers: [{name: a, token_file: a, roles: [rot]}]}", "auth.callers[0].roles[0]", "must be one of"),
    ],
)
def test_values_are_refused_in_plain_words(text: str, path: str, message: str) -> None:
    """No word of the validation library's own reaches the owner."""
    problem = only(f"{{version: 1, {text}}}")
    assert problem.path == path
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "is missing"), ("version: 2", "must be 1"), ("version: '1'", "must be 1")]
)
def test_the_version_is_required_and_known(text: str, said: str) -> None:
    """A later format must not be read as this one."""
    problem = only(text)
    assert problem.path == "version"
    assert said in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "listen: {host: '${env:S}'}",
        "broker: {queue: {max_wait: ' ${env:S} '}}",
        "host: {reserve: {memory: '${env:S}'}}",
        "host: {cpu_share: '${env:S}'}",
        "state_dir: '~${env:S}/x'",
        "models: {m: {file: m, launch: {cache_type: '${env:S}'}}}",
        "models: {m: {file: m, launch: {cache_ram: 'x${env:S}'}}}",
        "models: {m: {file: m, aliases: ['${env:S}', '${env:S}']}}",
        "models: {m: {file: m, build: '${env:S}'}, n: {}}\nengines: {llama.cpp: {builds: [{name: x, executable: /x}]}}",
        "engines: {llama.cpp: {builds: ['${env:S}']}}",
    ],
)
@pytest.mark.parametrize("secret", ["s3cret-Wert-ü'\"-value", "zqx"])
def test_a_value_from_the_environment_is_never_shown(text: str, secret: str) -> None:
    """An error's text ends in logs and tickets."""
    for problem in problems(f"version: 1\n{text}", {**ENV, "S": secret}):
        for form in (secret, ascii(secret)[1:-1], repr(secret)[1:-1], secret.strip()):
            assert form not in f"{problem}"


def test_an_error_carries_no_cause_that_could_show_a_value() -> None:
    """A traceback prints causes too."""
    error: BaseException | None = None
    try:
        good("{version: 1, listen: {port: '${env:S}'}}", {**ENV, "S": "s3cret"})
    except Exception as caught:  # noqa: BLE001  whatever it is, it is looked at
        error = caught
    assert error is not None
    assert error.__cause__ is None
    assert error.__context__ is None


def test_paths_are_written_with_dots_and_positions() -> None:
    """The form that people read and scripts match; odd names are quoted, so that a line stays a line."""
    assert path_text(("auth", "callers", 0, "name")) == "auth.callers[0].name"
    assert path_text(("models", "a\nb", "file")) == "models.'a\\nb'.file"
    assert path_text(()) == ""


def test_a_missing_key_has_the_line_of_its_section() -> None:
    """What isn't there has no line of its own."""
    found = to_problems([Found(("a", "b"), "is missing")], {("a",): 3}, {})
    assert found == [Problem("a.b", "is missing", None, 3)]
    assert str(found[0]) == "line 3: a.b: is missing"


def test_known_keys_follow_the_schema() -> None:
    """Suggestions come from the schema itself, whatever is added to it."""
    assert keys_at((), {}) == list(Config.model_fields)
    assert "ctx_size" in keys_at(("models", "q", "launch"), {})
    assert keys_at(("auth", "callers", 0), {})[:2] == ["name", "token_file"]
    assert keys_at(("listen", "port", "deeper"), {}) == []
