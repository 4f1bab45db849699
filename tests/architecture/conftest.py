"""Each file is parsed once for the tests of a module, and kept no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sources import forget_sources


@pytest.fixture(scope="module", autouse=True)
def _trees_are_let_go() -> Iterator[None]:
    yield
    forget_sources()
