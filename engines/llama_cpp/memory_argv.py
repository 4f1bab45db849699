"""What a command line of llama-server says about memory; the rest of it is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engines.llama_cpp.graphs.tensors import is_type
from engines.llama_cpp.memory_launch import LaunchChoices

_MIB = 2**20
_ALL_LAYERS = 10**6
_VALUES: Mapping[str, str] = {
    "-c": "ctx_size",
    "--ctx-size": "ctx_size",
    "-np": "slots",
    "--parallel": "slots",
    "-b": "batch",
    "--batch-size": "batch",
    "-ub": "ubatch",
    "--ubatch-size": "ubatch",
    "-ngl": "n_gpu_layers",
    "--gpu-layers": "n_gpu_layers",
    "--n-gpu-layers": "n_gpu_layers",
    "-ncmoe": "n_cpu_moe",
    "--n-cpu-moe": "n_cpu_moe",
    "-ctxcp": "ctx_checkpoints",
    "--ctx-checkpoints": "ctx_checkpoints",
    "--swa-checkpoints": "ctx_checkpoints",
}
_TYPES: Mapping[str, str] = {
    "-ctk": "cache_type_k",
    "--cache-type-k": "cache_type_k",
    "-ctv": "cache_type_v",
    "--cache-type-v": "cache_type_v",
}
_SWITCHES: Mapping[str, tuple[str, Any]] = {
    "-kvu": ("kv_unified", True),
    "--kv-unified": ("kv_unified", True),
    "-no-kvu": ("kv_unified", False),
    "--no-kv-unified": ("kv_unified", False),
    "-cmoe": ("n_cpu_moe", _ALL_LAYERS),
    "--cpu-moe": ("n_cpu_moe", _ALL_LAYERS),
    "--embedding": ("embeddings", True),
    "--embeddings": ("embeddings", True),
    "--rerank": ("pooling", "rank"),
    "--reranking": ("pooling", "rank"),
    "--swa-full": ("full_windows", True),
    "-nkvo": ("host_kv", True),
    "--no-kv-offload": ("host_kv", True),
    "--no-mmap": ("mapped", False),
    "--no-op-offload": ("takes_over", False),
    "-nr": ("repacks", False),
    "--no-repack": ("repacks", False),
    "--no-mmproj-offload": ("projector_on_device", False),
}
_DEVICES = frozenset({"-dev", "--device"})
_SPLITS = frozenset({"-ts", "--tensor-split"})
_SPLIT_MODES = frozenset({"-sm", "--split-mode"})
_MAIN_DEVICES = frozenset({"-mg", "--main-gpu"})
_ATTENTION = frozenset({"-fa", "--flash-attn"})
_LOAD_MODES = frozenset({"-lm", "--load-mode"})
_CACHE_RAM = frozenset({"-cram", "--cache-ram"})


def choices_from_argv(
    argv: Sequence[str],
    *,
    devices: Sequence[str] = (),
    build_number: int | None = None,
    has_device_backend: bool = False,
    projector_bytes: int = 0,
) -> LaunchChoices:
    """The launch choices of a command line.

    Args:
        argv: arguments after the executable; the last of a kind wins. A value that is no number reads as not said.
        devices: the build's devices, which it uses where the command line names none.
        build_number: of llama.cpp.
        has_device_backend: the build carries a device's libraries, used or not.
        projector_bytes: weights of the projector that the command line names.
    """
    said: dict[str, Any] = {
        "projector_bytes": projector_bytes,
        "build_number": build_number,
        "has_device_backend": has_device_backend,
    }
    names, main, single = tuple(devices), 0, False
    for flag, value in _pairs(argv):
        if flag in _SWITCHES:
            name, on = _SWITCHES[flag]
            said[name] = on
        number = _number(value)
        if flag in _VALUES and number is not None:
            said[_VALUES[flag]] = number
        elif flag in _TYPES and value is not None and is_type(value.upper()):
            said[_TYPES[flag]] = value
        elif flag == "--pooling" and value is not None:
            said["pooling"] = value
        elif flag in _DEVICES and value is not None:
            names = () if value == "none" else tuple(value.split(","))
        elif flag in _SPLIT_MODES:
            single = value == "none"
        elif flag in _MAIN_DEVICES:
            main = number or 0
        else:
            said.update(_other(flag, value))
    if single and main < len(names):
        names = (names[main],)
    return LaunchChoices(devices=names, **_sound(said, len(names)))


def _other(flag: str, value: str | None) -> Mapping[str, Any]:
    said: dict[str, Any] = {}
    if value is None:
        return said
    if flag in _ATTENTION:
        said["flash_attention"] = value not in {"off", "0", "false", "disabled"}
        said["flash_auto"] = value in {"auto", "-1"}
    elif flag in _LOAD_MODES:
        said["mapped"] = value != "none"
    elif flag in _CACHE_RAM and (number := _number(value)) is not None:
        said["cache_ram"] = number * _MIB if number >= 0 else None
    elif flag in _SPLITS and (shares := _shares(value)):
        said["shares"] = shares
    return said


def _shares(value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.replace("/", ",").split(","))
    except ValueError:
        return ()


def _sound(said: dict[str, Any], devices: int) -> dict[str, Any]:
    """Numbers as llama-server reads them: 0 and less mean its own default; shares fit the devices, or count as even."""
    for name in ("ctx_size", "slots", "batch", "ubatch"):
        if name in said and said[name] <= 0:
            del said[name]
    if said.get("pooling") == "rank":
        said["embeddings"] = True
    if said.get("n_gpu_layers", 0) < 0:
        del said["n_gpu_layers"]
    shares = said.get("shares", ())
    if len(shares) < devices or sum(shares[:devices]) <= 0:
        said.pop("shares", None)
    return said


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.lstrip("-").isdecimal() else None


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word that looks like a flag, with the word that follows it or stands behind its ``=``."""
    for place, word in enumerate(argv):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        following = argv[place + 1] if place + 1 < len(argv) else None
        yield flag, value if equals else following
