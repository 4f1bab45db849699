"""Anonymous host memory of the server itself, beside what it declares.

Constants are fitted to 492 recorded CPU launches of two builds (b11434, and b10434 with its Vulkan library): 2.8 MiB
under to 1.7 MiB over after the first short completion, and 3.1 MiB on a third that a first fit had not seen.
"""

from __future__ import annotations

from engines.llama_cpp.graphs.network import MIXED_SINCE
from engines.llama_cpp.memory_kv import sequence_state_bytes
from engines.llama_cpp.memory_launch import Launch
from engines.llama_cpp.memory_model import DELTA_NETS, ModelShape

_PROGRAM = 4_190_000
_PROGRAM_WITH_DEVICES = 15_800_000
_TOKEN = {"llama": 223, "bert": 302, "gpt2": 314}  # bytes of a vocabulary's entry, by the tokenizer's kind
_TENSOR = 4_565
# Each kept graph has room for this many nodes, all of it touched.
_NODE = 433
_LEAST_NODES = 1024
_NODES_A_TENSOR = 8
_NODES_A_TENSOR_GROWING = 32
_NODES_A_TOKEN = 40
# Graphs kept: the reserved one and the last, in newer builds the last with and without outputs.
_KEPT_GRAPHS = 2
_KEPT_GRAPHS_NEWER = 3
_CHECKPOINTS = 32
_CHECKPOINT_STEP = 8192  # tokens between two


def program_bytes(model: ModelShape, launch: Launch) -> int:
    """The program, its tables for the vocabulary and the tensors, and the graphs that it keeps."""
    vocabulary = model.vocabulary * _TOKEN.get(model.tokenizer, _TOKEN["gpt2"])
    return base_bytes(launch) + vocabulary + len(model.tensors) * _TENSOR + _graph_bytes(model, launch)


def base_bytes(launch: Launch) -> int:
    """The program before it has loaded anything, with the libraries of its devices."""
    return _PROGRAM_WITH_DEVICES if launch.choices.has_device_backend else _PROGRAM


def _graph_bytes(model: ModelShape, launch: Launch) -> int:
    nodes = max(_LEAST_NODES, _NODES_A_TENSOR * len(model.tensors))
    if model.architecture in DELTA_NETS:
        nodes = max(launch.tokens * _NODES_A_TOKEN, _NODES_A_TENSOR_GROWING * len(model.tensors))
    number = launch.choices.build_number
    newer = number is None or number >= MIXED_SINCE
    return nodes * _NODE * (_KEPT_GRAPHS_NEWER if newer else _KEPT_GRAPHS)


def growing_bytes(model: ModelShape) -> int:
    """What of ``program_bytes`` comes with the first request: the graph that a short one leaves."""
    return max(_LEAST_NODES, _NODES_A_TENSOR * len(model.tensors)) * _NODE


def checkpoint_bytes(model: ModelShape) -> int:
    """One context checkpoint after a short prompt: the recurrent state of one sequence."""
    return sequence_state_bytes(model) * sum(layer.recurrent for layer in model.layers)


def checkpoints_limit(model: ModelShape, launch: Launch, window_bytes: int) -> int:
    """What checkpoints of all slots may grow to; ``window_bytes``: one slot's windowed caches.

    One is made near the end of each prompt and one every 8192 tokens, and at most ``--ctx-checkpoints`` are kept.
    """
    most = _CHECKPOINTS if launch.choices.ctx_checkpoints is None else launch.choices.ctx_checkpoints
    count = min(most, 2 + launch.slot_context // _CHECKPOINT_STEP)
    return count * launch.slots * (checkpoint_bytes(model) + window_bytes)
