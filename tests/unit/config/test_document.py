from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from engines.contract import EngineKind
from supervisor.config.document import main, page, stale_documents
from supervisor.config.json_schema import file_schema
from supervisor.config.schema import Config, settings_type
from supervisor.config.suggest import keys_at
from supervisor.units import parse_duration, parse_size
from tests.unit.config.helpers import good, problems
from tests.unit.config.small_schema import fits

ROOT = Path(__file__).parents[3]
SCHEMA = file_schema()


def valid(text: str) -> bool:
    """Whether an editor with the schema would find nothing wrong."""
    return fits(yaml.safe_load(text), SCHEMA, SCHEMA)


def test_the_documents_are_what_the_schema_says() -> None:
    """A changed field changes the page: python -m supervisor.config.document writes it."""
    assert not stale_documents(ROOT / "docs"), "run: python -m supervisor.config.document"


def test_a_stale_or_missing_document_is_noticed(tmp_path: Path) -> None:
    """The test above can fail."""
    (tmp_path / "configuration.md").write_text("old", encoding="utf-8")
    assert {path.name for path in stale_documents(tmp_path)} == {"configuration.md", "config.schema.json"}
    for path, text in stale_documents(tmp_path).items():
        path.write_text(text, encoding="utf-8")
    assert not stale_documents(tmp_path)


def test_a_wrong_call_writes_nothing() -> None:
    """A misspelt --check must not write."""
    assert main(["--chekc"]) == 2


@functools.cache
def the_page() -> str:
    """docs/configuration.md as it should be."""
    return page()


def page_keys() -> list[str]:
    """The first column of every table of keys."""
    return re.findall(r"^\| `([^`]+)` \| .* \| (?:live|next launch|restart) \| .+ \|$", the_page(), re.MULTILINE)


@pytest.mark.parametrize(
    ("prefix", "place"),
    [
        ("listen.", ("listen",)),
        ("listen.tls.", ("listen", "tls")),
        ("auth.callers[].", ("auth", "callers", 0)),
        ("host.devices.NAME.", ("host", "devices", "CUDA0")),
        ("engines.KIND.builds[].", ("engines", "llama.cpp", "builds", 0)),
        ("launch.", ("models", "m", "launch")),
        ("broker.queue.", ("broker", "queue")),
        ("supervision.restart.", ("supervision", "restart")),
        ("shutdown.", ("shutdown",)),
    ],
)
def test_every_key_is_on_the_page(prefix: str, place: tuple[str | int, ...]) -> None:
    """Each with its whole path, so that a search finds it; a section within has a table of its own."""
    found = [key.removeprefix(prefix) for key in page_keys() if key.startswith(prefix)]
    own = [key for key in found if "." not in key]
    wanted = [key for key in keys_at(place, {}) if f"## `{prefix}{key}`" not in the_page()]
    assert [key for key in own if key in wanted][: len(wanted)] == wanted
    assert prefix == "launch." or own == wanted  # other engines have launch settings of their own


def test_no_path_on_the_page_is_there_twice() -> None:
    """A container whose step has no name of its own would give two sections one path."""
    keys = page_keys()
    assert len(keys) > 60
    shared = [key for key in keys if not key.startswith("launch.")]  # each engine has launch settings of its own
    assert len(shared) == len(set(shared))


def test_the_page_speaks_as_the_file_does() -> None:
    """Seconds, bytes and None are the daemon's own; a file has 10m, 1GiB and auto."""
    text = the_page()
    assert "| `models.NAME.keep_alive` | duration, or `never`, or `forever` | `10m` | live |" in text
    assert "| `host.reserve.memory` | size | `1GiB` | live |" in text
    assert "| `host.memory` | size, or `auto` | `auto` | live |" in text
    assert "| `broker.queue.max_wait` | duration, not 0 | `2m` | live |" in text
    assert "| `launch.cache_ram` | size, or `auto` | `auto` | next launch |" in text
    assert "| `auth.callers[].name` | text | required | live |" in text


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.stem)
def test_each_example_is_valid_by_the_schema(file: Path) -> None:
    """An editor underlines nothing in them."""
    assert valid(file.read_text(encoding="utf-8"))


GOOD = [
    "version: 1\nmodels:\nhost:\n",
    "{version: 1, listen: {port: '${env:PORT}'}}",
    "{version: 1, engines: {llama.cpp: {builds: auto}}}",
    "{version: 1, engines: {llama.cpp: {builds: [auto, {name: a, executable: /a}]}}}",
    "{version: 1, host: {cpus: 2.5, memory: 0, devices: {CUDA0: {reserve: auto}}}}",
    "{version: 1, models: {m: {file: m, keep_alive: never, serves: auto, build: auto}}}",
    "{version: 1, models: {m: {file: m, engine: llama.cpp, launch: {ctx_size: auto, cache_type: q8_0}}}}",
    "{version: 1, models: {m: {file: m, launch: {cache_ram: 1GiB, threads: 4, warmup: false}}}}",
    "{version: 1, models: {m: {file: m, keep_alive: 1h30m, launch: {devices: [], extra_args: [--mlock]}}}}",
    "{version: 1, supervision: {stop: {grace: 0}}, shutdown: {drain: '${env:DRAIN}s'}}",
]
BAD = [
    "{listen: {port: 1}}",
    "{version: 2}",
    "{version: 1, lisetn: {}}",
    "{version: 1, listen: {port: 70000}}",
    "{version: 1, listen: {port: true}}",
    "{version: 1, supervision: {stop: {grace: 5}}}",
    "{version: 1, supervision: {stop: {grace: 5 parsecs}}}",
    "{version: 1, supervision: {readiness: {stall_timeout: 0}}}",
    "{version: 1, host: {cpus: 0}}",
    "{version: 1, host: {memory: 1024}}",
    "{version: 1, host: {cpu_share: splt}}",
    "{version: 1, engines: {lama.cpp: {}}}",
    "{version: 1, engines: {llama.cpp: {defaults: {ctx_sise: 8}}}}",
    "{version: 1, engines: {llama.cpp: {builds: [{name: a}]}}}",
    "{version: 1, models: {m: {file: m, launch: {slots: 0}}}}",
    "{version: 1, models: {m: {file: m, launch: {cache_type: q9}}}}",
    "{version: 1, models: {m: {file: m, launch: {cache_ram: 12}}}}",
    "{version: 1, models: {m: {file: m, keep_alive: auto}}}",
    "{version: 1, models: {m: {file: m, serves: []}}}",
    "{version: 1, auth: {callers: [{name: a}]}}",
    "{version: 1, concessions: [slots, everything]}",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_loader_takes_the_schema_takes(text: str) -> None:
    """No false alarm in an editor."""
    assert good(text, {"HOME": "/h", "PORT": "8080", "DRAIN": "3"}).version == 1
    assert valid(text)


@pytest.mark.parametrize("text", BAD)
def test_what_the_loader_refuses_the_schema_refuses(text: str) -> None:
    """An editor shows the mistake before the daemon does."""
    assert problems(text)
    assert not valid(text)


@example("0")
@example(" 0 ")
@given(st.from_regex(re.compile(r"[0-9.]{0,3}(ms|s|m|h|d|x)?[0-9]{0,2}[smh ]?", re.ASCII), fullmatch=True))
def test_the_pattern_of_durations_is_the_parsers(text: str) -> None:
    """One grammar in two places."""
    assert valid(json.dumps({"version": 1, "supervision": {"stop": {"grace": text}}})) == parses(parse_duration, text)


@example("0")
@example(" 0 ")
@given(st.from_regex(re.compile(r"[0-9.]{0,3} ?[KMGTkmg]?[Ii]?[Bb]?", re.ASCII), fullmatch=True))
def test_the_pattern_of_sizes_is_the_parsers(text: str) -> None:
    """One grammar in two places."""
    assert valid(json.dumps({"version": 1, "host": {"reserve": {"memory": text}}})) == parses(parse_size, text)


@pytest.mark.parametrize("size", ["1IB", "0ib", "1\N{KELVIN SIGN}B", "1M\N{LATIN SMALL LETTER DOTLESS I}B"])
def test_a_size_with_half_a_unit_is_refused(size: str) -> None:
    """Regression: these passed the pattern and ended reading the config with a KeyError."""
    assert problems(f"{{version: 1, host: {{memory: {size}}}}}")[0].path == "host.memory"
    assert not valid(f"{{version: 1, host: {{memory: {size}}}}}")


def parses(parse: Any, text: str) -> bool:
    """Whether a parser takes the text."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)


def test_the_schema_holds_together() -> None:
    """Every reference leads somewhere, every section is closed, and no word of ours is left in it."""
    definitions = SCHEMA["definitions"]
    for part in parts(SCHEMA):
        if "$ref" in part:
            assert part["$ref"].removeprefix("#/definitions/") in definitions
            assert len(part) == 1, "draft 7 ignores what stands beside a reference"
    described = [part for part in (SCHEMA, *definitions.values()) if "properties" in part]
    assert all(part["additionalProperties"] is False for part in described)
    assert not {"form", "unit", "applies", "gt", "ge", "$defs"} & {key for part in parts(SCHEMA) for key in part}
    used = {part["$ref"].removeprefix("#/definitions/") for part in parts(SCHEMA) if "$ref" in part}
    assert used == set(definitions)


def test_every_key_says_when_a_change_of_it_applies() -> None:
    """It shows while one types."""
    for kind in EngineKind:
        keys = SCHEMA["definitions"][settings_type(kind).__name__]["properties"]
        assert all(re.search(r"\[(live|next launch|restart)\]$", key["description"]) for key in keys.values())
    assert set(SCHEMA["properties"]) == set(Config.model_fields)


def test_launch_settings_are_those_of_the_models_engine() -> None:
    """Each engine has its own, in the engine's section and in the model's."""
    rules = SCHEMA["definitions"]["ModelConfig"]["allOf"]
    assert [rule["if"]["properties"]["engine"]["const"] for rule in rules] == [kind.value for kind in EngineKind]
    for kind, rule in zip(EngineKind, rules, strict=True):
        reference = {"$ref": f"#/definitions/{settings_type(kind).__name__}"}
        assert reference in rule["then"]["properties"]["launch"]["anyOf"]
        engine = SCHEMA["definitions"][f"EngineConfig.{kind.value}"]
        assert reference in engine["properties"]["defaults"]["anyOf"]
