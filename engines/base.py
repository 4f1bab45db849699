"""What an adapter says of matters that its engine does not know: each adapter overrides what it has."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engines.vocabulary import SettingsError

if TYPE_CHECKING:
    from engines.build_facts import CommandOutput, DeviceListing
    from engines.contract import LaunchSettings, ModelMetadata
    from engines.declared import Declared
    from engines.pictures import PictureEngine
    from engines.slots import Slots


class AdapterDefaults:
    """Answers of an engine that serves no text, has no parts, and tells nothing of itself."""

    slots_path: ClassVar[str | None] = None
    metrics_path: ClassVar[str | None] = None
    slots: ClassVar[Slots | None] = None
    socket_suffix: ClassVar[str | None] = None
    api_key_variable: ClassVar[str | None] = None
    pass_through_environment: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, str]] = {}
    has_context: ClassVar[bool] = True

    def parse_devices(self, _output: CommandOutput) -> tuple[DeviceListing, ...] | None:
        """No listing that can be trusted."""
        return None

    def build_files(self, _executable: Path) -> tuple[Path, ...]:
        """The executable and its libraries are all of it."""
        return ()

    def model_root(self, path: Path) -> Path:
        """A model is a file."""
        return path

    def split_files(self, path: Path) -> tuple[Path, ...] | None:
        """A model is one file."""
        return (path,)

    def read_parts(self, parts: Mapping[str, Path]) -> ModelMetadata:
        """No model of this engine has parts.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(f"models of this engine have no parts, and {', '.join(parts)} were named")

    def own_threads(self, _settings: LaunchSettings) -> bool:
        """The plan says the threads."""
        return False

    def read_declared(self, _line: str) -> Declared | None:
        """The log tells nothing of memory."""
        return None

    def prepare_generation(self, body: dict[str, Any], *, progress: bool = True) -> dict[str, Any]:  # noqa: ARG002  one has none
        """As it is."""
        return body

    def prepare_whole(self, _body: dict[str, Any]) -> dict[str, Any] | None:
        """As a stream."""
        return None

    def answer_prefix(self, _body: dict[str, Any]) -> str:
        """None."""
        return ""

    def can_stream(self, _body: dict[str, Any]) -> bool:
        """No."""
        return False

    def takes_media(self, _settings: LaunchSettings, _metadata: ModelMetadata | None) -> bool:
        """No."""
        return False

    def is_progress(self, _data: bytes) -> bool:
        """No."""
        return False

    def name_stop(self, sent: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return sent

    def stop_string(self, _data: bytes) -> str | None:
        """It is not told."""
        return None

    def count_tokens(self, _body: dict[str, Any]) -> Generator[tuple[str, dict[str, Any]], bytes, int]:
        """Tokens are for engines that serve text.

        Raises:
            ValueError: always.
        """
        raise ValueError("this engine counts no tokens")
        yield  # makes it the generator that callers expect

    def canary(self) -> Mapping[str, bytes] | None:
        """None is known."""
        return None

    def busy_slots(self, _body: bytes) -> int | None:
        """It can't be asked."""
        return None

    def exclusive_load(self, _devices: tuple[str, ...] | None) -> bool:
        """Others may compute meanwhile."""
        return False

    def pictures(self) -> PictureEngine | None:
        """It draws none."""
        return None
