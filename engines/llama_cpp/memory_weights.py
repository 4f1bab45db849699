"""Where a model's weights go: mapped from the file, repacked, read into memory, or onto a device.

Facts from llama.cpp's ``llama_model_loader::create_tensor`` and ``ggml-cpu/repack.cpp`` (x86 with AVX2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engines.formats.gguf_layout import PlacedTensor
from engines.llama_cpp.graphs.backends import device_backend, host_backend, row_padding
from engines.llama_cpp.memory_launch import HOST, Launch, pad
from engines.llama_cpp.memory_model import ModelShape

_LAYER = re.compile(r"blk\.(\d+)\.")
_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
# They belong to no layer, but are used in the first one.
_FREQUENCIES = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_WITH_FIRST_LAYER = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.", *_FREQUENCIES)
_NORM_IS_OUTPUT = frozenset({"lfm2", "lfm2moe"})  # their output norm bears the embedding norm's name
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
_REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_REPACKED_ROWS = 8
# Weights that are not multiplied with a matrix as they are.
_OTHER_OPERATIONS = ("ssm_conv1d", "shortconv.conv", "norm", "lerp", "time_mix_r_k")
_CPU_ALIGNMENT = 32
_EMBEDDING = "token_embd.weight"


@dataclass(slots=True)
class WeightBytes:
    """Bytes of weights.

    Attributes:
        mapped: of the file, as a span from the first used tensor to the last; lies in the page cache.
        host: read into host memory.
        repacked: copies in the CPU's own form, in host memory.
        devices: by index of the device.
        placed: place of each tensor by name; a second copy has ``@place`` after its name.
    """

    mapped: int = 0
    host: int = 0
    repacked: int = 0
    devices: dict[int, int] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)


def weight_bytes(model: ModelShape, launch: Launch) -> WeightBytes | None:
    """Bytes by place; None where the tensors, or one's type, are not known."""
    if not model.tensors:
        return None
    result = WeightBytes()
    spans: dict[int, tuple[int, int]] = {}
    read = 0
    for name, tensor, place in _copies(model, launch):
        size = tensor.size
        if size is None:
            return None
        result.placed[name] = place
        if place != HOST:
            backend = device_backend(launch.choices.devices[place])
            size += row_padding(backend.family, tensor.type_name, tensor.dims[0])
            result.devices[place] = result.devices.get(place, 0) + pad(size, backend.alignment)
        elif _is_repacked(name, tensor, launch):
            result.repacked += pad(size, _CPU_ALIGNMENT)
        else:
            first, last = spans.get(tensor.file, (tensor.start, 0))
            spans[tensor.file] = min(first, tensor.start), max(last, tensor.start + size)
            read += pad(size, _host_alignment(launch))
    if launch.choices.mapped:
        result.mapped = sum(last - first for first, last in spans.values())
    elif read:
        result.host = read + (host_backend(launch.choices.devices[0]).extra if launch.on_devices else 0)
    return result


def layer_of(name: str) -> int | None:
    """The layer that a tensor's name names."""
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def _copies(model: ModelShape, launch: Launch) -> Iterator[tuple[str, PlacedTensor, int]]:
    """Each copy of each tensor that is loaded, with its place."""
    for name, tensor in model.tensors.items():
        place = _place(name, tensor, model, launch)
        yield name, tensor, place
        if name.startswith(_FREQUENCIES):
            used = set(launch.places[:-1]) - {place}
            yield from ((f"{name}@{other}", tensor, other) for other in sorted(used))
        if name == _EMBEDDING and model.tied:
            output = launch.places[-1]
            if output != HOST or _is_repacked("output.weight", tensor, launch):
                yield f"{name}@{output}", tensor, output


def _place(name: str, tensor: PlacedTensor, model: ModelShape, launch: Launch) -> int:
    layer = layer_of(name)
    if name.startswith(_INPUTS):
        return HOST
    if layer is not None:
        place = launch.places[layer] if layer < len(launch.places) else HOST
    elif name.startswith(_WITH_FIRST_LAYER) and not (
        name.startswith("token_embd_norm.") and model.architecture in _NORM_IS_OUTPUT
    ):
        place = launch.places[0]
    else:
        place = launch.places[-1]
    if layer is not None and layer < launch.choices.n_cpu_moe and _EXPERTS.search(name):
        return HOST
    if place != HOST and name.endswith(".ssm_a") and not _device_scans(tensor, model, launch, place):
        return HOST
    return place


def _device_scans(tensor: PlacedTensor, model: ModelShape, launch: Launch, place: int) -> bool:
    """A device without the state-space scan leaves the scan's weights to the CPU; gated delta nets need none."""
    if len(tensor.dims) == 1:
        return True
    state = model.number("ssm.state_size")
    return device_backend(launch.choices.devices[place]).scans_states(state, per_head=tensor.dims[0] == 1)


def _is_repacked(name: str, tensor: PlacedTensor, launch: Launch) -> bool:
    """Beside a device its pinned buffers come first, so nothing is repacked."""
    if launch.on_devices or not launch.choices.repacks or tensor.type_name not in _REPACKED:
        return False
    plain = name.split("@", maxsplit=1)[0]
    if not plain.endswith(".weight") or (plain.startswith(_INPUTS) and plain == name):
        return False
    dimensions = sum(size > 1 for size in tensor.dims[1:]) + 1
    is_matrix = dimensions == (3 if _EXPERTS.search(plain) else 2)
    is_multiplied = not any(part in plain for part in _OTHER_OPERATIONS)
    return is_matrix and is_multiplied and tensor.dims[1] % _REPACKED_ROWS == 0


def _host_alignment(launch: Launch) -> int:
    return host_backend(launch.choices.devices[0] if launch.on_devices else None).alignment


def expert_layers(model: ModelShape) -> int:
    """Layers up to the last that has experts, which ``--n-cpu-moe`` counts from the first; 0: there are none."""
    having = (layer_of(name) for name in model.tensors if _EXPERTS.search(name))
    return max((layer + 1 for layer in having if layer is not None), default=0)


def group_bytes(model: ModelShape) -> Mapping[str, int]:
    """Bytes of the file by part: ``input``, ``output``, ``dense`` layers and ``experts``, and by layer ``blk.N``."""
    parts: dict[str, int] = {}
    for name, tensor in model.tensors.items():
        layer = layer_of(name)
        kind = "input" if name.startswith(_INPUTS) else "output" if layer is None else "dense"
        kind = "experts" if layer is not None and _EXPERTS.search(name) else kind
        size = tensor.size or 0
        parts[kind] = parts.get(kind, 0) + size
        if layer is not None:
            parts[f"blk.{layer}"] = parts.get(f"blk.{layer}", 0) + size
    return parts
