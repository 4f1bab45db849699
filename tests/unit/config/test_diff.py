from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from engines.contract import EngineKind, LaunchSettings
from supervisor.config.diff import ConfigDiff, after_reload, diff
from supervisor.config.forms import Applies
from supervisor.config.load import load_config
from supervisor.config.schema import Config
from tests.unit.config.helpers import ENV, good

LLAMA = EngineKind.LLAMA_CPP


def between(old: str, new: str) -> ConfigDiff:
    """The difference of two files; each is written without its version."""
    return diff(good(f"version: 1\n{old}"), good(f"version: 1\n{new}"))


def paths(found: ConfigDiff) -> list[str]:
    """Where something is different."""
    return [change.path for change in found.changes]


def test_two_configs_that_are_the_same_differ_in_nothing() -> None:
    """Comments, order of keys and defaults that are written out are no change."""
    found = between(
        "models: {a: {file: a, aliases: [x]}, b: {file: b}}",
        "models: {b: {file: b, pinned: no}, a: {aliases: [x], file: a, keep_alive: 600s}}\nbroker:",
    )
    assert not found
    assert found == ConfigDiff()
    assert found.document()["changed"] is False


def test_a_change_says_its_path_its_class_and_both_values_as_a_file_writes_them() -> None:
    """The answer of a reload is read by people."""
    found = between(
        "broker: {queue: {max_wait: 2m}}\nhost: {memory: auto}",
        "broker: {queue: {max_wait: 90s}}\nhost: {memory: 1536MiB}\nsupervision: {stop: {grace: 1500ms}}",
    )
    assert [change.document() for change in found.changes] == [
        {"path": "host.memory", "change": "changed", "applies": "live", "old": "auto", "new": "1536MiB"},
        {"path": "broker.queue.max_wait", "change": "changed", "applies": "live", "old": "2m", "new": "1m30s"},
        {"path": "supervision.stop.grace", "change": "changed", "applies": "live", "old": "5s", "new": "1500ms"},
    ]


def test_two_values_that_differ_never_look_alike() -> None:
    """Rounding for people would say "1m, now 1m"."""
    found = between(
        "host: {memory: 1073741824B}\nbroker: {eviction: {min_idle: 60s}}",
        "host: {memory: 1073741825B}\nbroker: {eviction: {min_idle: 60.001s}}",
    )
    assert [(change.old, change.new) for change in found.changes] == [("1GiB", "1073741825B"), ("1m", "60001ms")]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("", "listen: {port: 9090}", "listen.port"),
        ("", "listen: {host: '::1'}", "listen.host"),
        ("", "state_dir: /s", "state_dir"),
        ("", "runtime_dir: /r", "runtime_dir"),
        ("models: {m: {file: m}}", "models: {m: {file: m, preload: true}}", "models.m.preload"),
    ],
)
def test_what_only_a_restart_changes_is_named(old: str, new: str, path: str) -> None:
    """It is reported, and touches no model."""
    found = between(old, new)
    assert found.needs_restart == (path,)
    assert found.document()["needs_restart"] == [path]
    assert not found.models_for_launch | found.models_live


def test_models_that_come_and_go() -> None:
    """They are not in the sets of changed models, and none of their values is listed."""
    found = between("models: {gone: {file: g}, stays: {file: s}}", "models: {stays: {file: s}, new: {file: n}}")
    assert (found.models_removed, found.models_added) == (frozenset({"gone"}), frozenset({"new"}))
    assert [change.document() for change in found.changes] == [
        {"path": "models.gone", "change": "removed", "applies": "live"},
        {"path": "models.new", "change": "added", "applies": "live"},
    ]
    assert not found.models_for_launch | found.models_live


@pytest.mark.parametrize("change", ["aliases: [x]", "keep_alive: 0", "keep_alive: never", "pinned: true"])
def test_what_applies_live_leaves_the_instance_alone(change: str) -> None:
    """A running stream must not notice that a model got another name."""
    found = between("models: {m: {file: m}, n: {file: n}}", f"models: {{m: {{file: m, {change}}}, n: {{file: n}}}}")
    assert found.models_live == {"m"}
    assert not found.models_for_launch


@pytest.mark.parametrize(
    "change",
    ["launch: {slots: 2}", "launch: {threads: auto}", "serves: [embeddings]", "build: own", "allow_paging: true"],
)
def test_what_a_launch_was_made_with_touches_that_model_alone(change: str) -> None:
    """One model changed, one instance replaced; ``threads: auto`` goes over the engine's default of 4."""
    engine = "engines: {llama.cpp: {defaults: {threads: 4}, builds: [{name: own, executable: /o}]}}\n"
    before = "models: {m: {file: m, aliases: [x]}, n: {file: n}}"
    found = between(engine + before, f"{engine}models: {{m: {{file: m, {change}}}, n: {{file: n}}}}")
    assert found.models_for_launch == {"m"}
    assert not found.models_live, "m has a live change as well, and is replaced anyway"
    assert found.touches_launch("m", LLAMA, configured=True)
    assert not found.touches_launch("n", LLAMA, configured=True)
    assert not found.touches_launch("found", LLAMA, configured=False)


def test_writing_out_what_the_engines_default_said_touches_no_launch() -> None:
    """The merged settings are the same, so the running engine is right as it is."""
    engine = "engines: {llama.cpp: {defaults: {cache_type: q8_0}}}\n"
    found = between(
        f"{engine}models: {{m: {{file: m}}}}", f"{engine}models: {{m: {{file: m, launch: {{cache_type: q8_0}}}}}}"
    )
    (change,) = found.changes
    assert (change.path, change.old, change.new) == ("models.m.launch.cache_type", None, "q8_0")
    assert not found.models_for_launch | found.models_live


def test_an_engines_default_touches_the_models_that_do_not_write_it_themselves() -> None:
    """A model's own setting counts over the default."""
    models = "models: {own: {file: o, launch: {slots: 2}}, bare: {file: b}}\n"
    found = between(models, f"{models}engines: {{llama.cpp: {{defaults: {{slots: 8}}}}}}")
    assert found.models_for_launch == {"bare"}
    assert found.engines_for_launch == {LLAMA}
    assert found.touches_launch("found", LLAMA, configured=False)


BUILDS = "engines: {{llama.cpp: {{builds: [{}]}}}}\nmodels: {{any: {{file: a}}, pinned: {{file: p, build: one}}}}"
ONE, TWO = "{name: one, executable: /1}", "{name: two, executable: /2}"


@pytest.mark.parametrize(
    ("old", "new", "path", "touched"),
    [
        (f"{ONE}, {TWO}", f"{ONE}, {{name: two, executable: /3}}", "builds.two.executable", {"any"}),
        (f"{ONE}, {TWO}", "{name: one, executable: /3}, " + TWO, "builds.one.executable", {"any", "pinned"}),
        (ONE, f"{ONE}, {TWO}", "builds.two", {"any"}),
        (f"{ONE}, {TWO}", ONE, "builds.two", {"any"}),
        (f"{ONE}, auto", f"auto, {ONE}", "builds", {"any"}),
    ],
)
def test_a_model_that_names_its_build_sees_no_other(old: str, new: str, path: str, touched: set[str]) -> None:
    """What it will be launched with is not among what changed."""
    found = between(BUILDS.format(old), BUILDS.format(new))
    assert paths(found) == [f"engines.llama.cpp.{path}"]
    assert found.models_for_launch == touched


def test_the_machine_touches_every_model() -> None:
    """Threads and devices go into each plan; a budget is kept by the ledger and goes into none."""
    models = "models: {a: {file: a}, b: {file: b}}\n"
    for change in ("host: {cpus: 2}", "host: {reserve: {cpus: 1}}", "host: {devices: {CUDA0: {use: false}}}"):
        found = between(models, models + change)
        assert found.models_for_launch == {"a", "b"}, change
        assert found.engines_for_launch == set(EngineKind)
    for change in ("host: {memory: 8GiB}", "host: {reserve: {memory: 2GiB}}", "host: {devices: {CUDA0: {}}}"):
        assert not between(models, models + change).models_for_launch, change


def test_a_device_that_is_named_for_the_first_time_is_compared_with_the_defaults() -> None:
    """Naming it without saying anything is no change; its parts keep their classes."""
    assert not between("", "host: {devices: {CUDA0: {}}}")
    found = between("", "host: {devices: {CUDA0: {use: false, reserve: 1GiB}}}")
    assert [(change.path, change.applies) for change in found.changes] == [
        ("host.devices.CUDA0.reserve", Applies.LIVE),
        ("host.devices.CUDA0.use", Applies.NEXT_LAUNCH),
    ]


def test_callers_are_compared_by_name() -> None:
    """One more at the top of the list is one change, not one for each after it."""
    ada, bob = "{name: ada, token_file: /a}", "{name: bob, token_file: /b}"
    found = between(f"auth: {{callers: [{ada}]}}", f"auth: {{callers: [{bob}, {ada}]}}")
    assert [(change.path, change.kind) for change in found.changes] == [("auth.callers.bob", "added")]
    found = between(f"auth: {{callers: [{ada}]}}", "auth: {callers: [{name: ada, token_file: /a, weight: 2}]}")
    assert [(change.path, change.old, change.new) for change in found.changes] == [("auth.callers.ada.weight", 1, 2)]


def test_values_of_an_environment_are_never_shown() -> None:
    """They hold tokens; the names of the variables are shown."""
    text = "engines: {{llama.cpp: {{env: {{{}}}, builds: [{{name: b, executable: /b, env: {{K: {}}}}}]}}}}"
    found = between(text.format("TOKEN: s3, GONE: s3", "s3"), text.format("TOKEN: s3cret, NEW: s3", "s3cret"))
    assert [(change.path, change.kind) for change in found.changes] == [
        ("engines.llama.cpp.env.TOKEN", "changed"),
        ("engines.llama.cpp.env.GONE", "removed"),
        ("engines.llama.cpp.env.NEW", "added"),
        ("engines.llama.cpp.builds.b.env.K", "changed"),
    ]
    assert "s3" not in repr(found) + json.dumps(found.document())


def test_a_value_that_came_from_the_environment_is_never_shown(tmp_path: Path) -> None:
    """It may be a secret, wherever it stands, also in one entry of a list."""
    file = tmp_path / "config.yaml"
    text = "{{version: 1, listen: {{hosts: [a, '{}']}}, models: {{m: {{file: m, launch: {{extra_args: [{}]}}}}}}}}"
    file.write_text(text.format("b", "--jinja"), encoding="utf-8")
    old = load_config(file, ENV)
    file.write_text(text.format("${env:HOST}", "'${env:ARG}'"), encoding="utf-8")
    new = load_config(file, {**ENV, "HOST": "s3cret", "ARG": "--s3cret"})
    found = diff(old.config, new.config, old.from_env | new.from_env)
    assert paths(found) == ["listen.hosts", "models.m.launch.extra_args"]
    assert all(change.hidden for change in found.changes)
    assert found.models_for_launch == {"m"}
    assert "s3cret" not in repr(found) + json.dumps(found.document())


def test_after_a_reload_the_address_and_the_folders_are_still_the_old_ones() -> None:
    """The config that is held is the one that is in force, so the next reload reports the rest again."""
    old = good("{version: 1, models: {m: {file: m}}}")
    new = good(
        "{version: 1, listen: {port: 9090, hosts: [a]}, state_dir: /s, models: "
        "{m: {file: m, preload: true, pinned: true, launch: {slots: 2}}, n: {file: n, preload: true}}}"
    )
    held = after_reload(old, new)
    assert (held.listen.port, held.listen.hosts) == (8080, ("a",))
    assert held.state_dir == old.state_dir
    assert (held.models["m"].preload, held.models["m"].pinned) == (False, True)
    assert held.models["n"].preload
    assert held.models["m"].launch.model_fields_set == {"slots"}
    assert diff(held, new).needs_restart == ("listen.port", "state_dir", "models.m.preload")
    assert paths(diff(held, new)) == list(diff(held, new).needs_restart)


class OtherSettings(LaunchSettings):
    """Those of an engine that is not llama.cpp."""

    steps: int = Field(20, json_schema_extra={"applies": "next launch"})


def test_another_engines_settings_are_compared_as_a_whole() -> None:
    """They have no key in common, so what was written is shown; the launch is another one."""
    old = good("{version: 1, models: {m: {file: m, launch: {slots: 2}}}}")
    other = old.models["m"].model_copy(update={"launch": OtherSettings(steps=4)})
    found = diff(old, old.model_copy(update={"models": {"m": other}}))
    assert [(change.path, change.old, change.new) for change in found.changes] == [
        ("models.m.launch", {"slots": 2}, {"steps": 4})
    ]
    assert found.models_for_launch == {"m"}


PIECES = st.fixed_dictionaries(
    {},
    optional={
        "listen": st.fixed_dictionaries({"port": st.integers(1, 3), "hosts": st.lists(st.sampled_from("ab"))}),
        "host": st.fixed_dictionaries({"cpus": st.sampled_from(["auto", 1, 2.5])}),
        "engines": st.fixed_dictionaries(
            {
                "llama.cpp": st.fixed_dictionaries(
                    {
                        "env": st.dictionaries(st.sampled_from("AB"), st.sampled_from("xy")),
                        "defaults": st.dictionaries(st.sampled_from(["slots", "threads"]), st.integers(1, 2)),
                    }
                )
            }
        ),
        "models": st.dictionaries(
            st.sampled_from("mno"),
            st.fixed_dictionaries(
                {"file": st.sampled_from(["/a", "/b"])},
                optional={
                    "pinned": st.booleans(),
                    "preload": st.booleans(),
                    "launch": st.dictionaries(st.sampled_from(["slots", "threads"]), st.sampled_from(["auto", 1, 2])),
                },
            ),
        ),
        "broker": st.fixed_dictionaries({"queue": st.fixed_dictionaries({"max_wait": st.sampled_from(["1s", "2s"])})}),
    },
)


def read(pieces: dict[str, Any]) -> Config:
    """The config of a JSON text, which is YAML."""
    return good(json.dumps({"version": 1, **pieces}))


@given(PIECES, PIECES)
def test_any_two_configs(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Nothing is missed, both ways name the same places, and what is held differs in nothing but a restart's keys."""
    old, new = read(one), read(other)
    assert not diff(old, old)
    there, back = diff(old, new), diff(new, old)
    assert set(paths(there)) == set(paths(back))
    assert there.models_for_launch == back.models_for_launch
    if not there:
        assert old == new
    held = after_reload(old, new)
    rest = diff(held, new)
    assert set(paths(rest)) == set(there.needs_restart)
    assert all(change.applies == Applies.RESTART for change in rest.changes)
    assert not there.models_for_launch & there.models_live
    json.dumps(there.document())
