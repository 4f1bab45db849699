"""Entry of ``enginehouse`` and ``python -m supervisor``: the marker is checked before anything else is imported."""

from __future__ import annotations

import os
import sys

import supervisor

_OVERWRITTEN = """\
enginehouse: the package `supervisor` in this environment is not Enginehouse's.
Another distribution (most often PyPI's `supervisor`, supervisord) installs a package of the same name over it.
Install Enginehouse in an environment of its own:
    python3 -m venv ~/enginehouse && ~/enginehouse/bin/pip install enginehouse
or, to keep this one: pip uninstall supervisor && pip install --force-reinstall --no-deps enginehouse
"""


def main() -> None:
    """Run the command line."""
    if getattr(supervisor, "ENGINEHOUSE_MARKER", None) != "enginehouse":
        sys.stderr.write(_OVERWRITTEN)
        raise SystemExit(2)
    # Looking for plugins of pydantic reads every installed package's metadata, which costs a start 30 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from supervisor.cli.main import run  # noqa: PLC0415  only after the marker

    run()


if __name__ == "__main__":
    main()
