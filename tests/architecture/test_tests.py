"""Rules that the tests themselves keep."""

from __future__ import annotations

import ast

from tests.support.sources import sources


def test_every_test_says_its_behaviour() -> None:
    """Each test has a docstring, so that a failure can be read without its code."""
    found = [
        f"{source.at(function)} {function.name}"
        for source in sources("tests", pattern="test_*.py")
        for function in source.functions()
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]
    assert not found


def test_no_test_mocks() -> None:
    """Fakes are written by hand and keep to their interface; a mock agrees with anything."""
    found = [
        str(source.path)
        for source in sources("tests")
        if any(name in {"mock", "unittest.mock", "pytest_mock"} for name in source.imports())
    ]
    assert not found
