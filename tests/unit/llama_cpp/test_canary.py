"""The tiny model that tells whether a build works: a sound file, and small."""

from __future__ import annotations

from pathlib import Path

from engines.contract import Capability
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.canary import canary_files


def test_it_is_a_whole_model_of_a_few_hundred_kilobytes(tmp_path: Path) -> None:
    """Our own reader finds a llama that chats, with every tensor inside the file."""
    [(name, content)] = canary_files().items()
    path = tmp_path / name
    path.write_bytes(content)
    adapter = LlamaCppAdapter()
    metadata = adapter.read_metadata((path,))
    assert 200_000 < metadata.file_bytes < 500_000
    assert metadata.architecture == "llama"
    assert metadata.vocabulary_size == 3 + 256 + 53
    assert metadata.tensor_bytes < metadata.file_bytes
    assert adapter.capabilities(metadata) == {Capability.CHAT}
    assert adapter.canary() == canary_files(), "the same bytes each time"
