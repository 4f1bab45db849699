from __future__ import annotations

import pytest

from supervisor.config.load import override_listen
from supervisor.errors import ConfigError
from tests.unit.config.helpers import good, only, problems


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "::ffff:10.0.0.1"])
def test_an_address_that_others_reach_needs_tokens(host: str) -> None:
    """Refused with the fix; callers or a clear yes make it good."""
    problem = only(f"{{version: 1, listen: {{host: '{host}'}}}}")
    assert problem.path == "listen.host"
    assert "auth.callers" in (problem.suggestion or "")
    assert "auth.open: true" in (problem.suggestion or "")
    good(f"{{version: 1, listen: {{host: '{host}'}}, auth: {{open: true}}}}")
    good(f"{{version: 1, listen: {{host: '{host}'}}, auth: {{callers: [{{name: a, token_file: /a}}]}}}}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_needs_none(host: str) -> None:
    """Whoever is on the machine may ask."""
    assert good(f"{{version: 1, listen: {{host: '{host}'}}}}").listen.host == host


def test_a_broken_caller_does_not_look_like_no_caller() -> None:
    """One problem: the caller's. The rule about tokens reads it, so it is silent."""
    found = problems("{version: 1, listen: {host: 0.0.0.0}, auth: {callers: [{name: a}]}}")
    assert [problem.path for problem in found] == ["auth.callers[0].token_file"]


def test_a_model_needs_a_file_or_files() -> None:
    """``file`` for one, ``files`` for parts by role."""
    assert only("{version: 1, models: {m: {}}}").path == "models.m.file"
    good("{version: 1, models: {m: {files: {model: a.gguf, mmproj: b.gguf}}}}")


@pytest.mark.parametrize(
    ("models", "place"),
    [
        ("{a: {file: a, aliases: [b]}, b: {file: b}}", "models.a.aliases[0]"),
        ("{a: {file: a, aliases: [x]}, b: {file: b, aliases: [y, x]}}", "models.b.aliases[1]"),
        ("{a: {file: a, aliases: [x, x]}}", "models.a.aliases[1]"),
        ("{a: {file: a, aliases: [a]}}", "models.a.aliases[0]"),
    ],
)
def test_a_name_means_one_model(models: str, place: str) -> None:
    """An alias that is taken would go to one of the two at random."""
    assert only(f"{{version: 1, models: {models}}}").path == place


def test_a_models_build_must_exist() -> None:
    """With ``auto`` in the list other names may be found on the machine, so only a likely slip is a problem."""
    builds = "engines: {llama.cpp: {builds: [{name: cuda, executable: /x}%s]}}"
    model = "models: {m: {file: m, build: %s}}"
    problem = only(f"{{version: 1, {builds % ''}, {model % 'vulkan'}}}")
    assert problem.path == "models.m.build"
    assert "cuda" in problem.message
    assert only(f"{{version: 1, {builds % ', auto'}, {model % 'cdua'}}}").suggestion == "did you mean cuda?"
    assert good(f"{{version: 1, {builds % ', auto'}, {model % 'other'}}}").models["m"].build == "other"
    assert good(f"{{version: 1, {builds % ''}, {model % 'cuda'}}}").models["m"].build == "cuda"


def test_builds_and_callers_have_names_of_their_own() -> None:
    """A name says which one."""
    build = "{name: a, executable: /x}"
    assert only(f"{{version: 1, engines: {{llama.cpp: {{builds: [{build}, {build}]}}}}}}").path.endswith("builds[1]")
    assert only("{version: 1, engines: {llama.cpp: {builds: [auto, auto]}}}").path.endswith("builds[1]")
    assert "auto" in only("{version: 1, engines: {llama.cpp: {builds: [{name: auto, executable: /x}]}}}").message
    caller = "{name: a, token_file: /x}"
    assert only(f"{{version: 1, auth: {{callers: [{caller}, {caller}]}}}}").path == "auth.callers[1].name"


@pytest.mark.parametrize(
    ("defaults", "launch", "place"),
    [
        ("{}", "{ctx_size: 1024, min_ctx_size: 2048}", "models.m.launch.min_ctx_size"),
        ("{min_ctx_size: 4096}", "{ctx_size: 1024}", "models.m.launch.min_ctx_size"),
        ("{ctx_size: 1024, min_ctx_size: 2048}", "{}", "engines.llama.cpp.defaults.min_ctx_size"),
    ],
)
def test_the_smallest_context_is_not_above_the_wanted_one(defaults: str, launch: str, place: str) -> None:
    """A model's own setting counts over its engine's default."""
    engines, models = f"{{llama.cpp: {{defaults: {defaults}}}}}", f"{{m: {{file: m, launch: {launch}}}}}"
    assert only(f"{{version: 1, engines: {engines}, models: {models}}}").path == place


def test_equal_contexts_are_good() -> None:
    """Equal means: never give up context."""
    good("{version: 1, models: {m: {file: m, launch: {ctx_size: 1024, min_ctx_size: 1024}}}}")


def test_times_must_be_in_order() -> None:
    """A drain that is longer than the whole shutdown, or a first wait above the longest."""
    assert only("{version: 1, shutdown: {drain: 10s}}").path == "shutdown"
    assert only("{version: 1, supervision: {restart: {initial: 2m}}}").path == "supervision.restart"


def test_the_command_lines_address_is_held_to_the_same_rules() -> None:
    """``--host 0.0.0.0`` without tokens is refused as in a file; ``--port`` alone changes the port alone."""
    config = good("{version: 1, listen: {hosts: [box]}}")
    assert override_listen(config, None, 9).listen.model_dump() == {**config.listen.model_dump(), "port": 9}
    assert override_listen(config, None, None) == config
    for host, port in (("0.0.0.0", None), ("localhost", None), (None, 70000)):
        with pytest.raises(ConfigError) as caught:
            override_listen(config, host, port)
        assert caught.value.facts["problems"][0].path.startswith("listen.")
