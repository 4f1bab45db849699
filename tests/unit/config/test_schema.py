from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from pydantic import BaseModel

from engines.contract import Capability, EngineKind, LaunchSettings
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.config import schema
from supervisor.config.schema import BuildConfig, Config, EngineConfig, ModelConfig, StopConfig
from tests.unit.config.helpers import ENV, good, only, problems


def sections() -> Iterator[type[BaseModel]]:
    """Every part of a config, and the settings of an engine."""
    for name in schema.__all__:
        value = getattr(schema, name)
        if isinstance(value, type) and issubclass(value, BaseModel):
            yield value
    yield LlamaCppSettings


def test_every_field_says_what_it_is_and_when_a_change_applies() -> None:
    """The generated pages and the reload depend on both."""
    for section in sections():
        assert section.__doc__
        for name, field in section.model_fields.items():
            extra = field.json_schema_extra
            assert isinstance(extra, dict), (section, name)
            assert extra["applies"] in ("live", "next launch", "restart"), (section, name)
            assert field.description, (section, name)


def test_defaults_are_those_of_the_written_interface() -> None:
    """Scripts and docs rely on these figures; durations are seconds and sizes are bytes."""
    config = good("version: 1")
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8080)
    assert config.auth.open is False
    assert (config.host.cpus, config.host.memory, config.host.reserve.memory) == (None, None, 2**30)
    assert (config.host.cpu_share, config.host.device_lost) == ("split", "fail")
    queue, eviction = config.broker.queue, config.broker.eviction
    assert (queue.per_caller, queue.total, queue.max_wait, queue.early_header) == (16, 64, 120.0, 10.0)
    assert (eviction.min_idle, eviction.pressure_grace) == (5.0, 30.0)
    care = config.supervision
    assert care.readiness.stall_timeout == 60.0
    assert (care.liveness.interval, care.liveness.timeout, care.liveness.failures) == (10.0, 3.0, 3)
    assert care.stop.grace == 5.0
    restart = care.restart
    assert (restart.initial, restart.factor, restart.max, restart.budget) == (1.0, 2.0, 60.0, 3)
    assert (restart.window, restart.stable_after) == (120.0, 60.0)
    assert (care.quarantine.strikes, care.quarantine.window, care.quarantine.cooldown) == (3, 3600.0, 21600.0)
    assert (config.shutdown.drain, config.shutdown.total) == (3.0, 9.0)
    assert config.concessions == ("slots", "cache_type", "ctx_size", "experts_to_cpu", "n_gpu_layers", "cpu")


def test_a_model_has_its_defaults() -> None:
    """A model needs a file and nothing else."""
    model = good("{version: 1, models: {m: {file: m.gguf}}}").models["m"]
    assert model == ModelConfig(file=Path("m.gguf"))
    assert (model.engine, model.serves, model.build, model.keep_alive) == (EngineKind.LLAMA_CPP, None, None, 600.0)
    assert model.launch == LlamaCppSettings()


def test_every_engine_is_there_with_its_own_settings_and_builds_found_by_themselves() -> None:
    """Zero config works: nobody has to name an engine."""
    for config in (Config(), good("version: 1"), good("{version: 1, engines: {llama.cpp: {env: {A: b}}}}")):
        engine = config.engines[EngineKind.LLAMA_CPP]
        assert engine.builds == ("auto",)
        assert isinstance(engine.defaults, LlamaCppSettings)


def test_every_engine_kind_has_settings() -> None:
    """A kind without an adapter would end reading any config with an exception."""
    for kind in EngineKind:
        assert issubclass(schema.settings_type(kind), LaunchSettings)


def test_launch_settings_have_the_type_of_the_models_engine() -> None:
    """A model's launch and its engine's defaults are read by the engine's own type."""
    config = good(
        """
        version: 1
        engines: {llama.cpp: {defaults: {slots: 2}}}
        models: {m: {file: m.gguf, launch: {ctx_size: 4096, threads: auto}}}
        """
    )
    assert config.engines[EngineKind.LLAMA_CPP].defaults == LlamaCppSettings(slots=2)
    launch = config.models["m"].launch
    assert launch == LlamaCppSettings(ctx_size=4096, threads=None)
    assert launch.model_fields_set == {"ctx_size", "threads"}


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90.0), ("1h30m", 5400.0), ("500ms", 0.5), ("0", 0.0), ('"0"', 0.0)]
)
def test_durations_become_seconds(written: str, seconds: float) -> None:
    """A duration is a number and a unit."""
    assert good(f"{{version: 1, supervision: {{stop: {{grace: {written}}}}}}}").supervision.stop.grace == seconds


@pytest.mark.parametrize("written", ["5", "5.0", "true", "[5s]", "-5s", "soon", '""', "1e400", '"' + "9" * 400 + 'd"'])
def test_a_duration_without_a_unit_is_refused_with_how_to_write_it(written: str) -> None:
    """A bare number could be seconds or minutes."""
    problem = only(f"{{version: 1, supervision: {{stop: {{grace: {written}}}}}}}")
    assert problem.path == "supervision.stop.grace"
    assert problem.line == 1


@pytest.mark.parametrize(
    ("written", "size"), [("512MiB", 2**29), ("1.5GiB", 3 * 2**29), ("16 GB", 16 * 10**9), ("0", 0)]
)
def test_sizes_become_bytes(written: str, size: int) -> None:
    """A size is a number and a unit."""
    assert good(f"{{version: 1, host: {{reserve: {{memory: {written}}}}}}}").host.reserve.memory == size


@pytest.mark.parametrize("written", ["1024", "1.5", "many", "no", '"' + "9" * 400 + 'TiB"'])
def test_a_size_without_a_unit_is_refused(written: str) -> None:
    """A bare number could be bytes or mebibytes."""
    assert only(f"{{version: 1, host: {{memory: {written}}}}}").path == "host.memory"


@pytest.mark.parametrize(
    ("written", "seconds"), [("never", None), ("forever", None), ("0", 0.0), ("10m", 600.0), ("0s", 0.0)]
)
def test_keep_alive_is_a_duration_or_never(written: str, seconds: float | None) -> None:
    """``never`` and ``forever``: it is never stopped for being idle; 0: it stops at once."""
    assert good(f"{{version: 1, models: {{m: {{file: m, keep_alive: {written}}}}}}}").models["m"].keep_alive == seconds


def test_an_empty_keep_alive_is_not_taken_for_never() -> None:
    """Regression: null passed as None, which keeps an instance for ever."""
    assert "no value" in only("{version: 1, models: {m: {file: m, keep_alive: }}}").message


@pytest.mark.parametrize("written", ["host: {cpus: auto, memory: auto}", "host:", "models:", "engines:\nhost:"])
def test_auto_and_parts_without_content_mean_the_defaults(written: str) -> None:
    """A section whose every line is commented out is null in YAML."""
    assert good(f"version: 1\n{written}\n") == good("version: 1")


def test_a_value_that_is_null_is_a_problem_where_auto_is_meant() -> None:
    """Null may be a slip; auto is a decision."""
    assert "auto" in only("{version: 1, host: {cpus: }}").message


def test_paths_start_at_home_or_in_the_files_folder() -> None:
    """``~`` is HOME of the environment; a model's file stays relative, to model_dirs."""
    config = good(
        """
        version: 1
        state_dir: ~/state
        data_dir: data
        auth: {callers: [{name: a, token_file: tokens/a}]}
        engines: {llama.cpp: {builds: [{name: own, executable: ~/llama/llama-server}]}}
        models: {m: {file: sub/m.gguf}, n: {file: ~/n.gguf}}
        """
    )
    assert config.state_dir == Path("/home/ada/state")
    assert config.data_dir == Path("/etc/enginehouse/data")
    assert config.model_dirs == (Path("/etc/enginehouse/data"),)
    assert config.auth.callers[0].token_file == Path("/etc/enginehouse/tokens/a")
    build = config.engines[EngineKind.LLAMA_CPP].builds[0]
    assert isinstance(build, BuildConfig)
    assert build.executable == Path("/home/ada/llama/llama-server")
    assert [model.file for model in config.models.values()] == [Path("sub/m.gguf"), Path("/home/ada/n.gguf")]


def test_default_places_follow_the_environment() -> None:
    """The XDG variables if they are absolute, else the usual places under HOME."""
    plain = good("version: 1", {"HOME": "/home/ada", "TMPDIR": "/var/tmp"})
    assert plain.state_dir == Path("/home/ada/.local/state/enginehouse")
    assert plain.data_dir == Path("/home/ada/.local/share/enginehouse")
    assert plain.runtime_dir == Path(f"/var/tmp/enginehouse-{os.getuid()}")
    env = {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_DATA_HOME": "relative", "XDG_RUNTIME_DIR": "/run/user/7"}
    moved = good("{version: 1, runtime_dir: auto}", env)
    assert moved.state_dir == Path("/s/enginehouse")
    assert moved.data_dir == Path("/h/.local/share/enginehouse")
    assert moved.runtime_dir == Path("/run/user/7/enginehouse")


def test_a_runtime_dir_that_is_too_long_for_sockets_is_refused_or_passed_over() -> None:
    """A Unix socket's path holds 107 bytes; the engine would fail long after the start."""
    long = "/x" * 50
    assert "bytes long" in only(f"{{version: 1, runtime_dir: {long}}}").message
    chosen = good("version: 1", {"HOME": "/h", "XDG_RUNTIME_DIR": long, "TMPDIR": long}).runtime_dir
    assert chosen == Path(f"/tmp/enginehouse-{os.getuid()}")


@pytest.mark.parametrize("written", ["auto", "[auto]"])
def test_builds_may_be_the_word_auto(written: str) -> None:
    """``auto`` is an entry of the list, or stands for the whole list."""
    config = good(f"{{version: 1, engines: {{llama.cpp: {{builds: {written}}}}}}}")
    assert config.engines[EngineKind.LLAMA_CPP].builds == ("auto",)


def test_builds_keep_their_order() -> None:
    """Order is preference."""
    config = good(
        "{version: 1, engines: {llama.cpp: {builds: [{name: a, executable: /a}, auto, {name: b, executable: /b}]}}}"
    )
    names = [b if isinstance(b, str) else b.name for b in config.engines[EngineKind.LLAMA_CPP].builds]
    assert names == ["a", "auto", "b"]


def test_serves_is_auto_or_a_list_of_capabilities() -> None:
    """None means: read it from the file."""
    config = good("{version: 1, models: {a: {file: a, serves: auto}, b: {file: b, serves: [chat, rerank]}}}")
    assert config.models["a"].serves is None
    assert config.models["b"].serves == (Capability.CHAT, Capability.RERANK)
    found = problems("{version: 1, models: {a: {file: a, serves: [chta]}, b: {file: b, serves: []}}}")
    assert [problem.path for problem in found] == ["models.a.serves[0]", "models.b.serves"]
    assert found[0].suggestion == "did you mean chat?"


@pytest.mark.parametrize("host", ["localhost", "*", "example.org", "[::1]", "300.1.1.1", '""'])
def test_listen_host_must_be_an_address(host: str) -> None:
    """A name could resolve to something public tomorrow."""
    assert "must be an IP address" in only(f'{{version: 1, listen: {{host: "{host.strip(chr(34))}"}}}}').message


@pytest.mark.parametrize("port", ["-1", "65536", "http", "8080.0", "true", "1_000"])
def test_listen_port_must_be_a_port(port: str) -> None:
    """Anything else is refused before a socket is opened."""
    assert only(f"{{version: 1, listen: {{port: {port}}}}}").path == "listen.port"


@pytest.mark.parametrize(("word", "value"), [("no", False), ("off", False), ("yes", True), ("true", True)])
def test_switches_take_the_words_of_yaml(word: str, value: bool) -> None:
    """``pinned: no`` means what it says."""
    assert good(f"{{version: 1, models: {{m: {{file: m, pinned: {word}}}}}}}").models["m"].pinned is value


@pytest.mark.parametrize("value", ["maybe", "1", '""', "[]"])
def test_switches_take_nothing_else(value: str) -> None:
    """1 is a number, not a yes."""
    assert only(f"{{version: 1, models: {{m: {{file: m, pinned: {value}}}}}}}").message == "must be true or false"


def test_code_gives_seconds_bytes_and_paths_as_they_are() -> None:
    """Only a file's numbers need units; in code the field's own unit holds."""
    assert StopConfig(grace=0.25).grace == 0.25
    engine = EngineConfig(builds=(BuildConfig(name="own", executable=Path("bin/x")),))
    config = Config(
        models={"m": ModelConfig(file=Path("m.gguf"), launch=LlamaCppSettings(slots=2), keep_alive=None)},
        engines={EngineKind.LLAMA_CPP: engine},
        state_dir=Path("relative"),
    )
    assert config.state_dir == Path("relative")
    assert config.engines[EngineKind.LLAMA_CPP].builds == engine.builds
    assert isinstance(config.engines[EngineKind.LLAMA_CPP].defaults, LlamaCppSettings)
    assert config.models["m"].keep_alive is None


def test_a_config_is_frozen() -> None:
    """A reload makes a new one; nobody changes this one."""
    config: Any = Config()
    with pytest.raises(pydantic.ValidationError):
        config.version = 2


def test_environment_values_are_not_in_a_configs_repr() -> None:
    """They may come from ``${env:…}`` and would end in a log."""
    config = good(
        """
        version: 1
        engines: {llama.cpp: {env: {KEY: "${env:K}"}, builds: [{name: a, executable: /a, env: {L: "${env:K}"}}]}}
        """,
        {**ENV, "K": "s3cret-value"},
    )
    assert config.engines[EngineKind.LLAMA_CPP].env == {"KEY": "s3cret-value"}
    assert "s3cret" not in repr(config)


def test_the_json_schema_can_be_made() -> None:
    """Editors and the generated docs read it."""
    assert "supervision" in Config.model_json_schema()["properties"]
