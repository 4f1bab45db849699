"""The words of docs/configuration.md around its tables."""

from __future__ import annotations

BEFORE = """\
<!-- Written by `python -m supervisor.config.document`; change the schema in supervisor/config, not this page. -->

# Configuration

One YAML file. Nothing but `version: 1` is required in it, and without a file the daemon finds engines and models by
itself. `enginehouse check FILE` names every mistake with its place and what was probably meant;
[examples/full.yaml](../examples/full.yaml) shows every key with its default.

## Where it is looked for

The first of these that there is:

1. `--config FILE`
2. `$ENGINEHOUSE_CONFIG`
3. `$XDG_CONFIG_HOME/enginehouse/config.yaml` (without the variable: `~/.config/enginehouse/config.yaml`)
4. `/etc/enginehouse/config.yaml`

A file that is named (1, 2) and isn't there is an error. If there is none of the others, the daemon runs without a
config.

## How values are written

| value | written | |
|---|---|---|
| duration | `500ms`, `90s`, `10m`, `1h30m`, `7d` | a number without a unit is refused, `0` apart |
| size | `512MiB`, `1.5GiB`, `16GB` | binary and decimal units; a number without one is refused, `0` apart |
| path | `/models`, `~/models`, `tokens/laptop` | `~` is your home; a relative path starts in the config file's \
folder, a model's `file` in one of `model_dirs` |
| `auto` | `auto` | worked out at start or at each launch; `enginehouse plan MODEL` says what came out, and why |
| `${env:NAME}` | `/srv/${env:NAME}` | filled in from the daemon's environment, also inside of a text; \
`$${` is a plain `${` |

Unknown keys and keys that are there twice are errors. Text that YAML takes for something else (`no`, `1:30`,
`2024-01-01`) is refused with the advice to quote it. A section in which nothing is written has its defaults.

## Secrets

A secret is never written into the file: a caller's token stands in a file of its own (`token_file`), everything else
comes by `${env:NAME}`. A reload reads token files again, also when the config is the same. What came from the
environment, and every value under an `env`, is left out of error messages and of what a reload says has changed.

## When a change applies

The daemon notices by itself when the file has other content, also when an editor puts a new file in its place, a
symlink is swapped or a ConfigMap is mounted: within a second where the system tells of changes, within a few where it
doesn't (bind mounts, network file systems). `SIGHUP` and `POST /admin/v1/reload` ask for the same. A file with a
mistake changes nothing: the daemon says what is wrong and goes on with what it had. Each key has a class:

| a change applies | that is |
|---|---|
| live | at once |
| next launch | when an engine is next started; an instance whose launch it touches is replaced, and no other |
| restart | when the daemon is next started; a reload names these keys and applies everything else |

A key under `engines`, `host` or `concessions` touches every model that it may concern: one that names its `build` is
not touched by another build, and an engine's default is nothing to a model that writes the setting itself.

## In an editor

Editors with the YAML language server complete and check the file with this line on top of it (the path, or the
address, of [config.schema.json](config.schema.json)):

```yaml
# yaml-language-server: $schema=config.schema.json
```
"""

AFTER = """\
## This page

`python -m supervisor.config.document` writes this page and `config.schema.json` from the schema in `supervisor/config`
and the launch settings in `engines`; with `--check` it exits 1 if they are not up to date.
"""

LAUNCH = """\
Under `engines.{kind}.defaults` for every model of the engine, under `models.NAME.launch` for one. What a model writes
goes over the engine's defaults, also `auto`.
"""

# What stands for a name or a position in the path of a section.
STEPS = {
    "engines": ".KIND",
    "models": ".NAME",
    "devices": ".NAME",
    "presets": ".ALIAS",
    "callers": "[]",
    "builds": "[]",
}

# Defaults that depend on the machine, in words.
STATED_DEFAULTS = {
    "state_dir": "`$XDG_STATE_HOME/enginehouse`, else `~/.local/state/enginehouse`",
    "data_dir": "`$XDG_DATA_HOME/enginehouse`, else `~/.local/share/enginehouse`",
    "runtime_dir": "`auto`",
    "model_dirs": "`data_dir`",
    "engines": "each with its own defaults",
}
