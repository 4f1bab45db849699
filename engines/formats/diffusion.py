"""Picture models from one file or from parts: kind, sizes and tensors, read from safetensors and GGUF headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines.contract import ModelFileError, ModelMetadata, NotAModelError
from engines.formats import gguf_header, safetensors
from engines.formats.picture_kinds import KINDS, PictureKind, kind_of

MODEL = "model"
DIFFUSION = "diffusion_model"
_GGUF_MAGIC = b"GGUF"
# How the network that draws is marked in a file that holds more than it.
_NETWORK_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "unet.", "transformer.")
_TEXT_PREFIXES = ("cond_stage_model.", "conditioner.embedders.", "text_encoders.", "text_encoder.", "te.")
_VAE_PREFIXES = ("first_stage_model.", "vae.", "tae.", "decoder.layers.")
_LORA_MARKS = ("lora_down", "lora_up", "lora_A", "lora_B", "lora.down", "lora.up", "hada_w1", "lokr_w1")
_TENSORS = "tensors"
_MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class PictureFile:
    """One file's tensors: dimensions by name, the row last.

    Attributes:
        types: bytes by type of number.
    """

    file_name: str
    format: str
    shapes: Mapping[str, tuple[int, ...]]
    tensor_bytes: int
    file_bytes: int
    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_lora(self) -> bool:
        """Whether it changes a model and is none."""
        return any(name.endswith(".diff") or any(mark in name for mark in _LORA_MARKS) for name in self.shapes)


def read_file(path: Path) -> PictureFile:
    """The tensors of a safetensors or GGUF file, by what it begins with.

    Raises:
        ModelFileError: can't be read, or is neither.
    """
    try:
        with path.open("rb") as stream:
            magic = stream.read(len(_GGUF_MAGIC)) if path.is_file() else b""
    except OSError as error:
        raise ModelFileError(f"{path.name} can't be opened: {error.strerror}.") from error
    types: dict[str, int] = {}
    if magic == _GGUF_MAGIC:
        header = gguf_header.read_header(path)
        shapes = {tensor.name: tuple(reversed(tensor.dims)) for tensor in header.tensors}
        for tensor in header.tensors:
            types[tensor.type_name] = types.get(tensor.type_name, 0) + (tensor.size or 0)
        return PictureFile(path.name, "gguf", shapes, header.tensor_bytes, header.file_bytes, types)
    stored = safetensors.read_header(path)
    for kept in stored.tensors:
        types[kept.type_name] = types.get(kept.type_name, 0) + kept.size
    shapes = {kept.name: kept.shape for kept in stored.tensors}
    size = sum(kept.size for kept in stored.tensors)
    return PictureFile(path.name, "safetensors", shapes, size, stored.file_bytes, types)


def read_checkpoint(path: Path) -> ModelMetadata:
    """Facts of a model in one file.

    Raises:
        ModelFileError: can't be read.
        NotAModelError: sound, but no picture model that is whole.
    """
    file = read_file(path)
    if file.is_lora:
        raise NotAModelError(f"{path.name} is a LoRA, not a model of its own: it is installed beside one.")
    network, text = network_of(file.shapes), _with_prefix(file.shapes, _TEXT_PREFIXES)
    kind = kind_of(network, text)
    if kind is None:
        raise NotAModelError(f"{path.name} is no picture model of a kind that is known.")
    if not text or not _with_prefix(file.shapes, _VAE_PREFIXES):
        missing = "text encoder" if not text else "autoencoder"
        raise NotAModelError(
            f"{path.name} is a {kind.name} network without {missing}: name it and its parts by `files`."
        )
    return _metadata(kind, {MODEL: file})


def read_parts(parts: Mapping[str, Path]) -> ModelMetadata:
    """Facts of a model whose parts are these, by role.

    Raises:
        ModelFileError: one can't be read, is no model, or a part is missing.
    """
    main = DIFFUSION if DIFFUSION in parts else MODEL
    if main not in parts:
        raise ModelFileError(f"`files` names no {DIFFUSION} and no {MODEL}: one of them draws the pictures.")
    files = {role: read_file(path) for role, path in parts.items()}
    for role, file in files.items():
        if file.is_lora:
            raise ModelFileError(f"{file.file_name}, named as {role}, is a LoRA: it is installed beside a model.")
    whole = files[main]
    text = _with_prefix(whole.shapes, _TEXT_PREFIXES)
    kind = kind_of(network_of(whole.shapes), text)
    if kind is None:
        raise ModelFileError(f"{whole.file_name}, named as {main}, is no picture model of a kind that is known.")
    _require(kind, files, bool(text), bool(_with_prefix(whole.shapes, _VAE_PREFIXES)))
    return _metadata(kind, files)


def network_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Tensors of the network that draws, without prefix."""
    for prefix in _NETWORK_PREFIXES:
        found = _with_prefix(shapes, (prefix,))
        if found:
            return {name.removeprefix(prefix): shape for name, shape in found.items()}
    others = (*_TEXT_PREFIXES, *_VAE_PREFIXES)
    return {name: shape for name, shape in shapes.items() if not name.startswith(others)}


def packed_tensors(metadata: ModelMetadata) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the network that draws, from a model's layout."""
    for table in metadata.layout.get(_TENSORS, ()):
        for line in table.splitlines():
            name, _, dims = line.rpartition(" ")
            yield name, tuple(int(size) for size in dims.split("x") if size)


def picture_kind(metadata: ModelMetadata) -> PictureKind:
    """The kind that was read.

    Raises:
        KeyError: the metadata is not of a picture model.
    """
    return KINDS[metadata.architecture]


def _require(kind: PictureKind, files: Mapping[str, PictureFile], has_text: bool, has_vae: bool) -> None:
    missing = [] if has_text else ["/".join(roles) for roles in kind.needs if not any(role in files for role in roles)]
    if not has_vae and "vae" not in files and "tae" not in files:
        missing.append("vae (or tae)")
    if missing:
        raise ModelFileError(f"a {kind.name} model needs {', '.join(missing)} too: name the file under `files`.")


def _metadata(kind: PictureKind, files: Mapping[str, PictureFile]) -> ModelMetadata:
    main = files.get(DIFFUSION) or files[MODEL]
    network = network_of(main.shapes)
    types = {name: size for name, size in main.types.items() if size > max(main.types.values()) // 10}
    facts: dict[str, str | int | float | bool] = {f"bytes.{role}": file.tensor_bytes for role, file in files.items()}
    facts |= _shape_facts(network)
    table = "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in network.items())
    return ModelMetadata(
        format=main.format,
        architecture=kind.name,
        file_bytes=sum(file.file_bytes for file in files.values()),
        tensor_bytes=sum(file.tensor_bytes for file in files.values()),
        quantization=next(iter(types)) if len(types) == 1 else _MIXED if types else None,
        fields=facts,
        layout={_TENSORS: (table,)},
        roles=() if set(files) == {MODEL} else tuple(files),
    )


def _shape_facts(network: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """What the size of working buffers depends on: width of the network, and of one attention head."""
    facts = {}
    width = next((network[name][0] for name in _WIDTH_TENSORS if network.get(name)), None)
    if width is not None:
        facts["width"] = width
    head = next((shape[-1] for name, shape in network.items() if name.endswith(_HEAD_ENDS) and shape), None)
    if head:
        facts["head"] = head
    return facts


_WIDTH_TENSORS = (
    "img_in.weight",
    "x_embedder.weight",
    "x_embedder.proj.weight",
    "input_blocks.0.0.weight",
    "conv_in.weight",
)
_HEAD_ENDS = ("key_norm.scale", "norm_k.weight", "k_norm.weight", "attn.norm_added_k.weight")


def _with_prefix(shapes: Mapping[str, tuple[int, ...]], prefixes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}
