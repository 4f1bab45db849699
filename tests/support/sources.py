"""The project's source files as syntax trees, for tests of its architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file.

    Attributes:
        path: relative to the repository.
    """

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> tuple[str, ...]:
        """Its package and the part of it: ``("supervisor", "broker")``, or ``("supervisor", "clock.py")``."""
        return self.path.parts[:2]

    def functions(self) -> Iterator[Function]:
        """Every function and method, at any depth."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with the dotted name that is called, as far as it is a plain one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func), node

    def imports(self) -> Iterator[str]:
        """Every module that is imported, also inside functions, and every name that is taken from one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def strings(self) -> Iterator[str]:
        """Every string constant."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value

    def at(self, node: ast.AST) -> str:
        """Where a node is, as an editor jumps to it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


def sources(*folders: str, pattern: str = "*.py") -> tuple[Source, ...]:
    """All files below these folders, in order."""
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob(pattern)))
    return tuple(_read(path) for path in found)


def forget_sources() -> None:
    """Let go of the trees: hundreds of megabytes, which every later fork and garbage collection would go through."""
    _read.cache_clear()


@cache
def _read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(ROOT), text, ast.parse(text))
