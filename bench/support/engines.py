"""What the daemon is given to run: the real llama-server, with a real model or toy weights, and the canned engine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.daemon import ROOT
from bench.support.errors import BenchError
from engines.contract import EngineKind
from engines.registry import adapter_for
from supervisor.cli.demo_model import SMOLLM2, DemoError, fetch_demo_model
from tests.fakes.tiny_gguf import Tensor, Typed, write_gguf
from tests.support.demo import demo_model_folder

_WIDTH = 32
_INNER = 64
_HEADS = 4


@dataclass(frozen=True, slots=True)
class Build:
    """An executable for ``engines.llama.cpp.builds``."""

    name: str
    executable: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def as_config(self) -> dict[str, Any]:
        """Its row."""
        return {"name": self.name, "executable": str(self.executable), "env": dict(self.env)}


def add_engine_options(parser: argparse.ArgumentParser, *, model: bool = False) -> None:
    """``--engine``, and ``--model`` where a real model is measured."""
    parser.add_argument("--engine", type=Path, help="a llama-server; else the packaged one, else the one on PATH")
    if model:
        parser.add_argument("--model", type=Path, help="a chat model's GGUF; else the demo model, fetched once")


def real_build(executable: Path | None) -> Build:
    """The llama-server to measure.

    Raises:
        BenchError: there is none.
    """
    if executable is not None:
        return Build("real", executable.absolute())
    for package in adapter_for(EngineKind.LLAMA_CPP).known_packages:
        found = importlib.util.find_spec(package.module)
        for location in (found.submodule_search_locations or ()) if found else ():
            path = Path(location) / package.executable
            if path.is_file():
                library = package.library_path
                return Build("real", path, {"LD_LIBRARY_PATH": str(Path(location) / library)} if library else {})
    on_path = shutil.which("llama-server")
    if on_path is None:
        raise BenchError("there is no llama-server: pip install '.[demo]', or name one with --engine")
    return Build("real", Path(on_path))


def real_model(path: Path | None) -> Path:
    """The model to measure with.

    Raises:
        BenchError: it can't be had.
    """
    if path is not None:
        if not path.is_file():
            raise BenchError(f"{path} is no file")
        return path.absolute()
    try:
        return fetch_demo_model(demo_model_folder(os.environ, SMOLLM2.wheel_sha256))
    except DemoError as error:
        raise BenchError(f"the demo model can't be had ({error}); name a model with --model") from error


def canned_build(folder: Path) -> Build:
    """The canned engine as an executable; what it says of itself, it has from the tests' fake."""
    home = folder / "build-canned"
    home.mkdir(exist_ok=True)
    path = home / "llama-server"
    python = shlex.quote(sys.executable)
    path.write_text(
        "#!/bin/sh\n"
        f"export PYTHONPATH={shlex.quote(str(ROOT))} PYTHONSAFEPATH=1\n"
        'case " $* " in\n'
        f'*" --version "*|*" --help "*|*" --list-devices "*) exec {python} -S -m tests.fakes.engine "$@" ;;\n'
        "esac\n"
        f'exec {python} -m bench.support.canned_engine "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return Build("canned", path)


def toy_model(folder: Path, name: str = "toy") -> Path:
    """A model that llama-server loads and runs in a fraction of a millisecond: one layer of weights near zero.

    Its answers are noise; its tokens are the printable ASCII characters.
    """
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", *(chr(code) for code in range(33, 127))]
    types = [2, 3, 3, 6, *[1] * (len(tokens) - 4)]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Toy",
        "general.file_type": 0,
        "llama.context_length": 2048,
        "llama.block_count": 1,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [Typed("i32", value) for value in types],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    }
    layer = {
        "attn_norm": (_WIDTH,),
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (_WIDTH, _WIDTH),
        "attn_v": (_WIDTH, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (_WIDTH, _INNER),
        "ffn_up": (_WIDTH, _INNER),
        "ffn_down": (_INNER, _WIDTH),
    }
    tensors = [
        Tensor("token_embd.weight", (_WIDTH, len(tokens))),
        Tensor("output_norm.weight", (_WIDTH,)),
        Tensor("output.weight", (_WIDTH, len(tokens))),
        *(Tensor(f"blk.0.{part}.weight", dims) for part, dims in layer.items()),
    ]
    return write_gguf(folder / f"{name}.gguf", metadata, tensors)


def ask(model: str, *, stream: bool = False, tokens: int = 1, text: str = "hi", **more: Any) -> dict[str, Any]:
    """A small chat."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    return {**body, **({"stream": True} if stream else {}), **more}
