"""What the adapter knows of models, launches and builds without starting any."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.contract import (
    BuildFacts,
    Capability,
    CommandOutput,
    Endpoint,
    Health,
    LogSignal,
    ModelFileError,
    NotAModelError,
    PlanDraft,
)
from engines.declared import DeclaredBuffer
from engines.mlx.adapter import MlxAdapter
from engines.mlx.memory import cache_shape
from engines.mlx.settings import MlxSettings

ADAPTER = MlxAdapter()
NOTHING = BuildFacts(None, None, None)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
}


def write(folder: Path, config: dict[str, Any], *, parts: int = 1, size: int = 1000, index: bool = True) -> Path:
    """A folder whose weights are nothing but their heads and zeros."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    names = ["model.safetensors"] if parts == 1 else [f"model-{n:05}-of-{parts:05}.safetensors" for n in range(parts)]
    for name in names:
        tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
        head = json.dumps({"__metadata__": {"format": "mlx"}, name: tensor}).encode()
        (folder / name).write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    if index:
        table = {"metadata": {"total_size": size * parts}, "weight_map": {name: name for name in names}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    return folder


def metadata(folder: Path) -> Any:
    """Facts of a folder."""
    files = ADAPTER.split_files(folder / "config.json")
    assert files is not None
    return ADAPTER.read_metadata(files)


def draft(folder: Path, **more: Any) -> PlanDraft:
    """A plan for a folder."""
    files = ADAPTER.split_files(folder) or ()
    made = PlanDraft(
        model_id="toy",
        files=files,
        metadata=ADAPTER.read_metadata(files),
        settings=MlxSettings(),
        capabilities=frozenset({Capability.CHAT}),
        threads=2,
        threads_batch=2,
        devices=(),
        n_gpu_layers=0,
        ctx_size=4096,
        slots=4,
        cache_type="f16",
    )
    return replace(made, **more)


def test_facts_of_a_folder(tmp_path: Path) -> None:
    """A folder and its config name one model, whose weights are counted without their heads."""
    folder = write(tmp_path / "Qwen2.5-1B", LLAMA, parts=3)
    facts = metadata(folder)
    assert (facts.format, facts.architecture, facts.name) == ("mlx", "llama", "Qwen2.5-1B")
    assert (facts.tensor_bytes, facts.split_count) == (3000, 3)
    assert (facts.context_length, facts.block_count, facts.head_count_kv) == (131072, 16, (8,))
    assert ADAPTER.split_files(folder) == ADAPTER.split_files(folder / "config.json")
    assert ADAPTER.model_root(folder / "config.json") == folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", "{}"),
        ("config.json", "{}"),
        ("config.json", json.dumps({"model_type": "bert", "architectures": ["BertModel"]})),
    ],
)
def test_what_is_no_model(name: str, content: str, tmp_path: Path) -> None:
    """Other files of that ending, and folders of other kinds, are passed over."""
    folder = write(tmp_path / "m", LLAMA)
    (folder / name).write_text(content)
    with pytest.raises(NotAModelError):
        ADAPTER.read_metadata(ADAPTER.split_files(folder / name) or ())


def test_damaged_folders(tmp_path: Path) -> None:
    """A missing part, a file that is cut short, and a config that is no JSON are each said."""
    lacking = write(tmp_path / "a", LLAMA, parts=2)
    (lacking / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="lacks model-00001"):
        ADAPTER.split_files(lacking)
    cut = write(tmp_path / "b", LLAMA)
    path = cut / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFileError, match="cut short"):
        metadata(cut)
    garbled = write(tmp_path / "c", LLAMA)
    (garbled / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="no JSON"):
        metadata(garbled)


def test_cache_of_a_token(tmp_path: Path) -> None:
    """Grouped heads, windows, compressed keys, and a quantised cache."""
    plain = cache_shape(metadata(write(tmp_path / "a", LLAMA)))
    assert plain is not None
    assert plain.per_token == 8 * 64 * 2 * 2
    assert plain.bytes(1000) == plain.per_token * 16 * 1024
    assert plain.bytes(1024, kv_bits=4) == (8 * 64 * 2) * 16 * 1024 * (4 + 0.5) / 8
    window = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6}
    rotating = cache_shape(metadata(write(tmp_path / "b", window)))
    assert rotating is not None
    assert (rotating.full, rotating.windowed) == (2, 14)
    assert rotating.bytes(4096) == rotating.per_token * (2 * 4096 + 14 * 512)
    typed = {**LLAMA, "model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["full_attention", "x"] * 8}
    assert getattr(cache_shape(metadata(write(tmp_path / "c", typed))), "windowed", 0) == 8
    latent = {**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert getattr(cache_shape(metadata(write(tmp_path / "d", latent))), "per_token", 0) == (512 + 64) * 2


def test_estimate(tmp_path: Path) -> None:
    """Nothing is mapped; on Metal what the GPU works on is the device's, which is bounded by what it may wire."""
    folder = write(tmp_path / "a", LLAMA)
    host = ADAPTER.estimate_memory(draft(folder))["host"]
    assert (host.weights, host.mapped) == (1000, 0)
    assert host.kv == 8 * 64 * 2 * 2 * 16 * 4096 * 4
    metal = ADAPTER.estimate_memory(draft(folder, devices=("Metal",)))
    assert metal["Metal"].kv == host.kv
    assert (metal["Metal"].compute or 0) < (host.compute or 0), "no scores of attention are kept there"
    assert metal["host"].weights is None


def test_a_draft_model_counts(tmp_path: Path) -> None:
    """Prevents: the memory book did not know of it. One that can't be read is not used, and does not count."""
    folder, other = write(tmp_path / "a", LLAMA), write(tmp_path / "b", {**LLAMA, "num_hidden_layers": 2})
    alone = ADAPTER.estimate_memory(draft(folder))["host"]
    guessing = draft(folder, settings=MlxSettings(draft_model=str(other)))
    for made in (ADAPTER.estimate_memory(guessing), ADAPTER.estimator(guessing.metadata)(guessing)):
        assert made["host"].weights == 2000
        assert made["host"].kv == (alone.kv or 0) * 18 // 16
    lost = draft(folder, settings=MlxSettings(draft_model=str(tmp_path / "no")))
    assert ADAPTER.estimate_memory(lost)["host"] == alone


def test_the_estimate_in_words(tmp_path: Path) -> None:
    """What the numbers are made of; where the config says too little, that."""
    rotating = MlxSettings(kv_bits=8, max_kv_size=512, draft_model="/no")
    told = {
        choice.choice: choice.reason for choice in ADAPTER.command(draft(write(tmp_path / "a", LLAMA)), NOTHING).choices
    }
    assert told["kv"] == "a token takes 2048 bytes in each of 16 layers; 4096 tokens, 4 at once"
    assert "256 MiB" in told["other"]
    told = {c.choice: c.reason for c in ADAPTER.command(draft(tmp_path / "a", settings=rotating), NOTHING).choices}
    assert told["kv"] == "a token takes 2048 bytes in each of 16 layers, quantised to 8 bits; 512 tokens, 4 at once"
    assert "draft model" in told["weights"]
    bare = write(tmp_path / "b", {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"})
    [kv] = [choice for choice in ADAPTER.command(draft(bare), NOTHING).choices if choice.choice == "kv"]
    assert (kv.value, kv.reason) == (None, "the config says too little to tell what a token takes")


def test_command(tmp_path: Path) -> None:
    """The program comes first, then the model's folder; what a server does not know is not said."""
    folder = write(tmp_path / "a", LLAMA)
    settings = MlxSettings(kv_bits=8, draft_model="/models/draft")
    argv = ADAPTER.command(draft(folder, settings=settings), NOTHING).argv
    assert argv[0].endswith("engines/mlx/server/run.py")
    assert argv[argv.index("--model") + 1] == str(folder)
    assert argv[argv.index("--kv-bits") + 1] == "8"
    older = ADAPTER.command(draft(folder), BuildFacts(None, frozenset({"--model"}), None))
    assert older.argv[1:] == ("--model", str(folder))
    assert ADAPTER.endpoint_args(Endpoint(socket_path=Path("/x.sock"))) == ("--host", "/x.sock")


def test_what_an_interpreter_says() -> None:
    """Versions, options and devices; what fails is not known."""
    versions = CommandOutput(0, '{"python": "3.11.7", "mlx": "0.32.4", "mlx-lm": "0.32.2"}\n', "")
    assert ADAPTER.parse_version(versions) == "MLX 0.32.4, mlx-lm 0.32.2, Python 3.11.7"
    assert ADAPTER.parse_version(CommandOutput(1, "", "ModuleNotFoundError: …")) is None
    assert ADAPTER.parse_devices(CommandOutput(0, '{"metal": false}', "")) == ()
    found = ADAPTER.parse_devices(CommandOutput(0, '{"metal": true, "name": "Apple M4", "working_set_bytes": 9}', ""))
    assert found is not None
    assert [(device.id, device.total_bytes) for device in found] == [("Metal", 9)]
    assert ADAPTER.parse_devices(CommandOutput(0, "nonsense", "")) is None
    flags = ADAPTER.parse_flags(CommandOutput(0, "  --model MODEL\n  --ctx-size N", ""))
    assert flags == frozenset({"--model", "--ctx-size"})


def test_life_signs() -> None:
    """Lines and answers as the server writes them."""
    prefix = "2026-11-30 23:59:59,000 - INFO - "
    assert ADAPTER.read_line(prefix + "listening on unix:///x.sock") is LogSignal.LISTENING
    assert ADAPTER.read_line(prefix + "model loaded in 1.00 s: context 2048, 4 at once") is LogSignal.MODEL_LOADED
    assert ADAPTER.read_line("a prompt that says model loaded in") is None
    assert ADAPTER.read_declared(prefix + "memory: weights 5 bytes on host") == DeclaredBuffer("host", "weights", 5)
    assert ADAPTER.read_health(503, b'{"error":{"message":"Loading model"}}') is Health.LOADING
    assert ADAPTER.read_health(503, b'{"error":{"message":"the engine broke"}}') is Health.SICK
    assert ADAPTER.busy_slots(b'[{"is_processing": true}, {"is_processing": false}]') == 1
    assert ADAPTER.stop_string(b'{"choices": [{"finish_reason": "stop", "stop_reason": "x"}]}') == "x"
    assert ADAPTER.stop_string(b'{"choices": [{"delta": {"content": "\\"stop_reason\\":"}}]}') is None
