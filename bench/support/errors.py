"""What ends a measurement."""

from __future__ import annotations


class BenchError(Exception):
    """The measurement can't be made, or what it measured answered wrongly; ``str()`` says why."""
