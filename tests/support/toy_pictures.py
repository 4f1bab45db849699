"""Toy picture models that the real sd-server loads and draws with: two kinds, 18 and 24 MB, made in a second.

Names and shapes are those that stable-diffusion.cpp expects; the weights are random, but for an autoencoder that
averages 8 x 8 pixels and back, so that a source picture stays a blurred copy. The same seed makes the same bytes.

Only some kinds can be small: sizes of the Flux family are read from the shapes. A head has 128 numbers, the Qwen3
vocabulary 151,936 rows, and an autoencoder of 64 channels stands in for the large one, which can't be smaller.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
import pytest

Array: TypeAlias = Any  # of numpy, which is checked nowhere
Tensors = dict[str, Array]

_NAMES = {"float16": "F16", "float32": "F32"}
_HEAD = 128
_TEXT_WIDTH = 32
_VOCABULARY = 151_936
_PADDING_TOKEN = 151_643


@dataclass(frozen=True, slots=True)
class ToyModels:
    """Files of the toys.

    Attributes:
        ovis: an Ovis Image model, which begins with one source picture; by role.
        klein: a Flux.2 klein model, which looks at several.
        loras: a folder with ``toy_style`` (fits ovis, and would end an engine of klein) and ``toy_nomatch``.
        broken: ``truncated``, ``garbage`` and ``missing_tensor`` in place of ovis's network.
    """

    folder: Path

    @property
    def ovis(self) -> dict[str, str]:
        """Parts of the Ovis Image model."""
        return self._parts("ovis/diffusion", "ovis/llm", "ovis/tae")

    @property
    def klein(self) -> dict[str, str]:
        """Parts of the Flux.2 klein model."""
        return self._parts("klein/diffusion", "ovis/llm", "klein/tae")

    @property
    def loras(self) -> Path:
        """The folder of LoRAs."""
        return self.folder / "loras"

    def broken(self, name: str) -> Path:
        """A file that can't be used."""
        return self.folder / "broken" / f"{name}.safetensors"

    def _parts(self, *names: str) -> dict[str, str]:
        roles = ("diffusion_model", "llm", "tae")
        return {role: str(self.folder / f"{name}.safetensors") for role, name in zip(roles, names, strict=True)}


def make_toys(folder: Path) -> ToyModels:
    """Write all of them."""
    rng = np.random.default_rng(1)
    ovis = _network(rng, "ovis", 128, 64)
    save(folder / "ovis/diffusion.safetensors", ovis)
    save(folder / "ovis/llm.safetensors", _text_encoder(rng))
    save(folder / "ovis/tae.safetensors", _autoencoder(16, attention=False))
    save(folder / "klein/diffusion.safetensors", _network(rng, "klein", 256, 128))
    save(folder / "klein/tae.safetensors", _autoencoder(32, attention=True))
    save(folder / "loras/toy_style.safetensors", lora(rng, {"double_blocks.0.img_attn.proj": (128, 128)}))
    save(folder / "loras/toy_nomatch.safetensors", lora(rng, {"no_such_block": (128, 128)}))
    whole = (folder / "ovis/diffusion.safetensors").read_bytes()
    (folder / "broken").mkdir()
    (folder / "broken/truncated.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "broken/garbage.safetensors").write_bytes(b"this is not a model file\n" * 100)
    missing = {name: tensor for name, tensor in ovis.items() if name != "single_blocks.0.linear2.weight"}
    save(folder / "broken/missing_tensor.safetensors", missing)
    return ToyModels(folder)


def save(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    raw = orjson.dumps(header)
    raw += b" " * (-len(raw) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        for tensor in tensors.values():
            stream.write(np.ascontiguousarray(tensor).tobytes())


def lora(rng: np.random.Generator, changes: dict[str, tuple[int, int]], rank: int = 4) -> Tensors:
    """A LoRA that changes these tensors, each of so many rows and columns."""
    tensors: Tensors = {}
    for name, (rows, columns) in changes.items():
        tensors[f"diffusion_model.{name}.lora_A.weight"] = _random(rng, rank, columns)
        tensors[f"diffusion_model.{name}.lora_B.weight"] = _random(rng, rows, rank, spread=1.0)
    return tensors


def _random(rng: np.random.Generator, *shape: int, spread: float | None = None) -> Array:
    scale = 1.0 / np.sqrt(shape[-1]) if spread is None else spread
    return (rng.standard_normal(shape, dtype=np.float32) * scale).astype(np.float16)


class _Layers:
    """Collects the layers of a network of the Flux family."""

    def __init__(self, rng: np.random.Generator, *, bias: bool) -> None:
        self.tensors: Tensors = {}
        self._rng = rng
        self._bias = bias

    def linear(self, name: str, rows: int, columns: int, spread: float | None = None) -> None:
        self.tensors[f"{name}.weight"] = _random(self._rng, rows, columns, spread=spread)
        if self._bias:
            self.tensors[f"{name}.bias"] = np.zeros(rows, np.float32)

    def modulation(self, name: str, width: int, parts: int) -> None:
        """Shifts, scales and gates; the gates are open."""
        self.linear(name, parts * width, width, 0.15 / np.sqrt(width) if self._bias else 1.5 / np.sqrt(width))
        for gate in range(2, parts, 3) if self._bias else ():
            self.tensors[f"{name}.bias"][gate * width : (gate + 1) * width] = 1.0

    def norms(self, name: str) -> None:
        self.tensors[f"{name}.query_norm.scale"] = np.full(_HEAD, 1.5, np.float32)
        self.tensors[f"{name}.key_norm.scale"] = np.ones(_HEAD, np.float32)


def _network(rng: np.random.Generator, kind: str, width: int, channels: int) -> Tensors:
    """One double and one single block. Ovis has biases, modulations of its own, and gated layers; klein has not."""
    ovis = kind == "ovis"
    layers = _Layers(rng, bias=ovis)
    inner = width * (4 if ovis else 3)
    eye = np.zeros((width, channels), np.float32)
    eye[:channels, :] = np.eye(channels)
    layers.linear("img_in", width, channels)
    layers.tensors["img_in.weight"] = eye.astype(np.float16)  # the noisy latent passes through
    layers.linear("time_in.in_layer", width, 256)
    layers.linear("time_in.out_layer", width, width)
    if ovis:
        layers.tensors["txt_norm.scale"] = np.ones(_TEXT_WIDTH, np.float32)
    layers.linear("txt_in", width, _TEXT_WIDTH, 2.0 / np.sqrt(_TEXT_WIDTH))
    for stream in ("img", "txt"):
        name = f"double_blocks.0.{stream}_"
        if ovis:
            layers.modulation(f"{name}mod.lin", width, 6)
        layers.linear(f"{name}attn.qkv", 3 * width, width, 1.5 / np.sqrt(width))
        values = layers.tensors[f"{name}attn.qkv.weight"][2 * width :]
        values *= np.float16(4.0 if stream == "txt" else 0.1)  # what is seen comes from the prompt
        layers.norms(f"{name}attn.norm")
        layers.linear(f"{name}attn.proj", width, width, 5.0 / np.sqrt(width))
        if ovis:
            layers.linear(f"{name}mlp.gate_proj", inner, width)
            layers.linear(f"{name}mlp.up_proj", inner, width)
            layers.linear(f"{name}mlp.down_proj", width, inner, 2.5 / np.sqrt(inner))
        else:
            layers.linear(f"{name}mlp.0", 2 * inner, width)
            layers.linear(f"{name}mlp.2", width, inner, 2.5 / np.sqrt(inner))
    if ovis:
        layers.modulation("single_blocks.0.modulation.lin", width, 3)
    layers.linear("single_blocks.0.linear1", 3 * width + 2 * inner, width)
    layers.linear("single_blocks.0.linear2", width, width + inner, 2.5 / np.sqrt(width + inner))
    layers.norms("single_blocks.0.norm")
    if not ovis:
        for name, parts in (("double_stream_modulation_img", 6), ("double_stream_modulation_txt", 6)):
            layers.modulation(f"{name}.lin", width, parts)
        layers.modulation("single_stream_modulation.lin", width, 3)
    layers.linear("final_layer.linear", channels, width)
    noise = rng.standard_normal((channels, width)) * 0.02
    layers.tensors["final_layer.linear.weight"] = (2.8 * eye.T + noise).astype(np.float16)
    layers.linear("final_layer.adaLN_modulation.1", 2 * width, width, 0.1 / np.sqrt(width))
    return layers.tensors


def _text_encoder(rng: np.random.Generator) -> Tensors:
    """Shaped as Qwen3, one layer of it; the engine fixes 32 heads, 8 of keys and values, of 128 numbers each."""
    tensors: Tensors = {
        "model.embed_tokens.weight": _random(rng, _VOCABULARY, _TEXT_WIDTH, spread=1.0),
        "model.norm.weight": np.ones(_TEXT_WIDTH, np.float32),
    }
    tensors["model.embed_tokens.weight"][_PADDING_TOKEN] = 0
    name = "model.layers.0."
    for layer, rows, columns in (
        ("self_attn.q_proj", 32 * _HEAD, _TEXT_WIDTH),
        ("self_attn.k_proj", 8 * _HEAD, _TEXT_WIDTH),
        ("self_attn.v_proj", 8 * _HEAD, _TEXT_WIDTH),
        ("self_attn.o_proj", _TEXT_WIDTH, 32 * _HEAD),
        ("mlp.gate_proj", 64, _TEXT_WIDTH),
        ("mlp.up_proj", 64, _TEXT_WIDTH),
        ("mlp.down_proj", _TEXT_WIDTH, 64),
    ):
        tensors[f"{name}{layer}.weight"] = _random(rng, rows, columns)
    tensors[f"{name}self_attn.q_norm.weight"] = np.full(_HEAD, 3.0, np.float32)
    tensors[f"{name}self_attn.k_norm.weight"] = np.ones(_HEAD, np.float32)
    tensors[f"{name}input_layernorm.weight"] = np.ones(_TEXT_WIDTH, np.float32)
    tensors[f"{name}post_attention_layernorm.weight"] = np.ones(_TEXT_WIDTH, np.float32)
    return tensors


class _Convolutions:
    """Collects the layers of a tiny autoencoder of 64 channels."""

    channels = 64

    def __init__(self) -> None:
        self.tensors: Tensors = {}

    def conv(
        self,
        name: str,
        out: int,
        into: int,
        taps: list[tuple[int, int, Array]] | None = None,
        bias: Array | bool | None = None,
    ) -> None:
        """3 x 3, all zero but for the taps; ``bias``: False for none."""
        kernel = np.zeros((out, into, 3, 3), np.float32)
        for row, column, tap in taps or ():
            kernel[row, column] += tap
        self.tensors[f"{name}.weight"] = kernel.astype(np.float16)
        if bias is not False:
            self.tensors[f"{name}.bias"] = np.asarray(np.zeros(out) if bias is None else bias).astype(np.float32)

    def block(self, name: str, *, attention: bool = False) -> None:
        """What comes in goes out: its convolutions are zero."""
        for layer in (0, 2, 4):
            self.conv(f"{name}.conv.{layer}", self.channels, self.channels)
        if attention:
            wide = 4 * self.channels
            self.tensors[f"{name}.pool.0.weight"] = np.zeros((wide, self.channels, 1, 1), np.float16)
            self.tensors[f"{name}.pool.1.weight"] = np.ones(wide, np.float32)
            self.tensors[f"{name}.pool.1.bias"] = np.zeros(wide, np.float32)
            self.tensors[f"{name}.pool.3.weight"] = np.zeros((self.channels, wide, 1, 1), np.float16)


def _autoencoder(latents: int, *, attention: bool) -> Tensors:
    """Means of 8 x 8 pixels, repeated over the latent channels; and back, blurred."""
    layers, wide, contrast = _Convolutions(), _Convolutions.channels, 2.5
    one = np.zeros((3, 3))
    one[1, 1] = 1.0
    mean = np.zeros((3, 3))
    mean[1:, 1:] = 0.25
    blur = np.outer([0.25, 0.5, 0.25], [0.25, 0.5, 0.25])
    layers.conv("encoder.layers.0", wide, 3, [(colour, colour, one) for colour in range(3)])
    layers.block("encoder.layers.1")
    for stage, halving in enumerate((2, 6, 10)):
        layers.conv(f"encoder.layers.{halving}", wide, wide, [(c, c, mean) for c in range(wide)], bias=False)
        for block in range(halving + 1, halving + 4):
            layers.block(f"encoder.layers.{block}", attention=attention and stage == 2)
    into = [(channel, channel % 3, one * contrast) for channel in range(latents)]
    layers.conv("encoder.layers.14", latents, wide, into, np.full(latents, -0.5 * contrast))
    copies = [[channel for channel in range(latents) if channel % 3 == colour][:2] for colour in range(3)]
    back = [(c, channel, one / (contrast * len(copies[c]))) for c in range(3) for channel in copies[c]]
    middle = np.zeros(wide)
    middle[:3] = 0.5
    layers.conv("decoder.layers.0", wide, latents, back, middle)
    for block in (2, 3, 4):
        layers.block(f"decoder.layers.{block}", attention=attention)
    for doubling, count in ((6, 3), (11, 3), (16, 1)):
        layers.conv(f"decoder.layers.{doubling}", wide, wide, [(c, c, blur) for c in range(wide)], bias=False)
        for block in range(doubling + 1, doubling + 1 + count):
            layers.block(f"decoder.layers.{block}")
    layers.conv("decoder.layers.18", 3, wide, [(colour, colour, one) for colour in range(3)])
    return layers.tensors


@pytest.fixture(scope="session")
def toy_models(tmp_path_factory: pytest.TempPathFactory) -> ToyModels:
    """The toys, made once a session."""
    return make_toys(tmp_path_factory.mktemp("toys"))
