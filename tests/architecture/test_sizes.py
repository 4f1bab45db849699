"""Files and functions that fit into a head."""

from __future__ import annotations

from tests.support.sources import Function, sources

_LONGEST_FILE = 400
_LONGEST_FUNCTION = 60


def test_files_stay_small() -> None:
    """No file of the product has more than 400 lines; one that grows is cut by what changes together."""
    sizes = {str(source.path): source.text.count("\n") for source in sources("engines", "supervisor")}
    assert {path: lines for path, lines in sizes.items() if lines > _LONGEST_FILE} == {}


def test_functions_stay_small() -> None:
    """No function of the product has more than 60 lines."""
    found = [
        f"{source.at(function)} {function.name}: {_lines(function)}"
        for source in sources("engines", "supervisor")
        for function in source.functions()
        if _lines(function) > _LONGEST_FUNCTION
    ]
    assert not found


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1
