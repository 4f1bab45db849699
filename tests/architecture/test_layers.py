"""Who may import, build and know what."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.fakes.engine_parts.options import FLAGS
from tests.support.sources import ROOT, Source, sources


def test_imports_go_downwards_only() -> None:
    """import-linter finds every contract of pyproject.toml kept."""
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_telemetry_knows_prometheus() -> None:
    """Metrics are derived from events in one room; no other room can count something on the side."""
    knowing = {
        source.room
        for source in sources("supervisor", "engines")
        if any(name.partition(".")[0] == "prometheus_client" for name in source.imports())
    }
    assert knowing <= {("supervisor", "telemetry")}


def test_only_engines_know_a_flag_of_an_engine() -> None:
    """No argument of llama-server stands in the supervisor; the commands' own options are another matter."""
    flags = {name for names, _, _, _ in FLAGS for name in names if name.startswith("--")}
    found = [
        f"{source.path}: {text}"
        for source in sources("supervisor")
        if source.room != ("supervisor", "cli")
        for text in source.strings()
        if text in flags
    ]
    assert not found


def test_only_app_builds_what_lives_long() -> None:
    """A class with a ``run`` task is constructed in ``app``, or inside its own room by its owner."""
    homes = {name: source.room for source in sources("supervisor") for name in _long_lived(source)}
    found = [
        f"{source.at(call)}: {name}"
        for source in sources("supervisor")
        for name, call in source.calls()
        if name in homes and source.room not in {homes[name], ("supervisor", "app")}
    ]
    assert homes
    assert not found


def test_nothing_is_global() -> None:
    """No ``global`` statement: state has one owner, which gets all it needs as constructor arguments."""
    found = [
        source.at(node)
        for source in sources("supervisor", "engines")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    ]
    assert not found


@pytest.mark.parametrize(
    ("forbidden", "why"),
    [
        ("time.sleep", "it blocks the event loop, or hides a wait for an event"),
        ("os.wait", "it reaps children that others wait for: their process.wait() would hang"),
        ("os.fork", "the event loop does not survive it"),
        ("os.system", "it blocks, and goes through a shell"),
    ],
)
def test_calls_that_break_the_event_loop_or_its_children(forbidden: str, why: str) -> None:
    """The supervisor never calls it."""
    found = [source.at(call) for source in sources("supervisor") for name, call in source.calls() if name == forbidden]
    assert not found, why


def test_nobody_reaps_every_child() -> None:
    """No ``waitpid(-1)``: under uvloop it makes other waits hang now and then."""
    found = [
        source.at(call)
        for source in sources("supervisor", "engines")
        for name, call in source.calls()
        if name.rpartition(".")[2] in {"waitpid", "waitid", "wait3", "wait4"}
        and (not call.args or ast.unparse(call.args[0]) in {"-1", "0", "os.P_ALL"})
    ]
    assert not found


def test_nothing_runs_between_fork_and_exec() -> None:
    """No ``preexec_fn``: it can deadlock in a process with threads."""
    found = [
        source.at(call)
        for source in sources("supervisor", "engines")
        for _, call in source.calls()
        if any(keyword.arg == "preexec_fn" for keyword in call.keywords)
    ]
    assert not found


def _long_lived(source: Source) -> list[str]:
    return [
        node.name
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(item, ast.AsyncFunctionDef) and item.name == "run" for item in node.body)
    ]
