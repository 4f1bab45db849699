"""How much context a request gets."""

import pytest

from supervisor.planning.context import default_ctx_size


@pytest.mark.parametrize(("trained", "size"), [(None, 8192), (2048, 2048), (8192, 8192), (131072, 8192)])
def test_the_default_is_what_the_model_knows_within_reason(trained: int | None, size: int) -> None:
    """Never more than it was trained on, and no more than a home server's memory easily holds."""
    assert default_ctx_size(trained) == size
