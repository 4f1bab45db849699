"""A real engine with a projector and a draft model takes what is predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.contract import PlanDraft
from engines.llama_cpp.command import build_command
from engines.llama_cpp.memory import table_of
from engines.llama_cpp.parts import read_parts
from engines.llama_cpp.settings import LlamaCppSettings
from tests.fakes.tiny_gguf import Tensor, write_gguf
from tests.support.demo import DemoEngine
from tests.support.llama_drafts import llama_draft
from tests.support.memory_rows import predicted_of_row, recorded_headers
from tests.support.real_engine import facts_of, loading
from tests.support.recorded_models import write_model
from tests.support.sockets import short_socket_folder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

_MIB = 2**20
_ROUNDED = 0.011  # the log has two decimals, of each buffer
_WIDE, _INNER, _PATCH = 96, 256, 14


def _projector(path: Path, width: int) -> Path:
    """Eyes of one layer for a gemma3 of this width."""
    metadata = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": 224,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _WIDE,
        "clip.vision.feed_forward_length": _INNER,
        "clip.vision.block_count": 1,
        "clip.vision.attention.head_count": 6,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": width,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    layer = "v.blk.0."
    square = [f"{layer}attn_{name}" for name in ("q", "k", "v", "out")]
    sizes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (_PATCH, _PATCH, 3, _WIDE),
        "v.patch_embd.bias": (_WIDE,),
        "v.position_embd.weight": (_WIDE, (224 // _PATCH) ** 2),
        **{f"{name}.weight": (_WIDE, _WIDE) for name in square},
        **{f"{name}.bias": (_WIDE,) for name in square},
        **{f"{layer}ln{number}.{part}": (_WIDE,) for number in (1, 2) for part in ("weight", "bias")},
        f"{layer}ffn_up.weight": (_WIDE, _INNER),
        f"{layer}ffn_up.bias": (_INNER,),
        f"{layer}ffn_down.weight": (_INNER, _WIDE),
        f"{layer}ffn_down.bias": (_WIDE,),
        "v.post_ln.weight": (_WIDE,),
        "v.post_ln.bias": (_WIDE,),
        "mm.input_projection.weight": (width, _WIDE),
        "mm.soft_emb_norm.weight": (_WIDE,),
    }
    return write_gguf(path, metadata, [Tensor(name, dims) for name, dims in sizes.items()])


def test_a_projector_and_a_draft_model_take_what_is_predicted(tmp_path: Path, demo_engine: DemoEngine) -> None:
    """Both beside one model, by the planner's own command line: buffers to the log's two decimals."""
    headers = (header for header in recorded_headers().values() if header["kv"]["general.file_type"] == 1)
    header = next(header for header in headers if header["kv"]["general.architecture"] == "gemma3")
    model = write_model(header, tmp_path)[0]
    eyes = _projector(tmp_path / "mmproj.gguf", header["kv"]["gemma3.embedding_length"])
    metadata = read_parts({"model": model, "mmproj": eyes, "draft": model})
    facts = facts_of(demo_engine.executable, demo_engine.env)
    settings = LlamaCppSettings(warmup=False, draft_tokens=4)
    one_thread: dict[str, int] = {"threads": 1, "threads_batch": 1}
    draft = llama_draft(metadata, (model, eyes, model), build=facts, settings=settings, cache_type="q8_0", **one_thread)
    table = table_of(draft)
    assert table is not None
    host = table.by_place["host"]
    computed = replace(table, by_place={"host": replace(host, compute=(host.compute or 0) - _computes(draft))})
    predicted = {key: (size or 0) / _MIB for key, size in predicted_of_row(computed).items()}
    with short_socket_folder() as folder:
        argv = [str(demo_engine.executable), *build_command(draft, facts).argv, "--host", str(folder / "e.sock")]
        with loading(argv, demo_engine.env, until="listening on") as seen:
            assert seen.loaded, seen.lines[-3:]
            assert any("draft-simple" in line for line in seen.lines)
            size = next(line for line in seen.lines if "load_hparams: model size" in line)
            declared = dict(seen.declared)
    assert float(size.split()[-2]) == pytest.approx((host.projector or 0) / _MIB, abs=_ROUNDED)
    assert declared == pytest.approx(predicted, abs=4 * _ROUNDED)


def _computes(draft: PlanDraft) -> int:
    """What the projector computes in: without warm-up the log does not tell it."""
    without = {role: facts for role, facts in draft.metadata.beside.items() if role != "mmproj"}
    fewer = replace(draft.metadata, roles=("model", "draft"), beside=without)
    table, other = table_of(draft), table_of(replace(draft, metadata=fewer, files=draft.files[::2]))
    assert table is not None
    assert other is not None
    return (table.by_place["host"].compute or 0) - (other.by_place["host"].compute or 0)
