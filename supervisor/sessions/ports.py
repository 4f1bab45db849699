"""What conversations need of others, and no more."""

from __future__ import annotations

from typing import Protocol

from supervisor.instances.launch import Launch
from supervisor.models.catalog import ModelEntry


class HeldSlot(Protocol):
    """A lease."""

    @property
    def launch(self) -> Launch: ...  # noqa: D102  said in the class

    @property
    def slot(self) -> int: ...  # noqa: D102  said in the class


class ServingInstance(Protocol):
    """One model's engine; see ``instances.instance.Instance``."""

    @property
    def id(self) -> str: ...  # noqa: D102  said in the class

    @property
    def entry(self) -> ModelEntry: ...  # noqa: D102  said in the class

    @property
    def is_starting(self) -> bool: ...  # noqa: D102  said in the class

    @property
    def launch(self) -> Launch | None: ...  # noqa: D102  said in the class
