"""Names of tensors as diffusers spells them, and as checkpoints of Stable Diffusion and Flux do. Pure.

All names are without prefix and ending, with ``_`` for every separator. Of a UNet both number the same blocks:
diffusers by level and place within it, a checkpoint in one row, where each level has two blocks and a change of size
going down, and three blocks going up (diffusers' ``convert_ldm_unet_checkpoint`` says which is which). Of Flux the
blocks have the same numbers; what a checkpoint keeps as one tensor and diffusers as three is not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLOCK = re.compile(r"(down|up)_blocks_(\d{1,2})_(attentions|resnets)_(\d{1,2})_(.+)")
_MIDDLE = re.compile(r"mid_block_(attentions|resnets)_([01])_(.+)")
_SCALE = re.compile(r"(down|up)_blocks_(\d{1,2})_(?:down|up)samplers_0_conv")
_BLOCKS_A_LEVEL = 3
_IN_RESNETS = {
    "conv1": "in_layers_2",
    "conv2": "out_layers_3",
    "time_emb_proj": "emb_layers_1",
    "conv_shortcut": "skip_connection",
}
_ALONE = {
    "conv_in": "input_blocks_0_0",
    "conv_out": "out_2",
    "time_embedding_linear_1": "time_embed_0",
    "time_embedding_linear_2": "time_embed_2",
    "add_embedding_linear_1": "label_emb_0_0",
    "add_embedding_linear_2": "label_emb_0_2",
}
_TRANSFORMER = re.compile(r"(single_)?transformer_blocks_(\d{1,3})_(.+)")
_IN_DOUBLE = {
    "attn_to_out_0": "img_attn_proj",
    "attn_to_add_out": "txt_attn_proj",
    "ff_net_0_proj": "img_mlp_0",
    "ff_net_2": "img_mlp_2",
    "ff_context_net_0_proj": "txt_mlp_0",
    "ff_context_net_2": "txt_mlp_2",
    "norm1_linear": "img_mod_lin",
    "norm1_context_linear": "txt_mod_lin",
}
_IN_SINGLE = {"proj_out": "linear2", "norm_linear": "modulation_lin"}


def checkpoint_names(name: str) -> Iterator[str]:
    """What a checkpoint may call the tensor that diffusers calls ``name``; nothing, where it is no such name."""
    if name in _ALONE:
        yield _ALONE[name]
    elif found := _BLOCK.fullmatch(name):
        way, level, kind, place, rest = found.groups()
        at = _BLOCKS_A_LEVEL * int(level) + int(place) + (way == "down")
        row = "input_blocks" if way == "down" else "output_blocks"
        yield f"{row}_{at}_{_within(kind, rest)}"
    elif found := _MIDDLE.fullmatch(name):
        kind, place, rest = found.groups()
        # A block, what attends, and another block.
        at = 1 if kind == "attentions" else 2 * int(place)
        yield f"middle_block_{at}_{rest if kind == 'attentions' else _IN_RESNETS.get(rest, rest)}"
    elif found := _SCALE.fullmatch(name):
        way, level = found.groups()
        if way == "down":
            yield f"input_blocks_{_BLOCKS_A_LEVEL * (int(level) + 1)}_0_op"
        else:
            last = _BLOCKS_A_LEVEL * int(level) + 2
            yield from (f"output_blocks_{last}_{place}_conv" for place in (1, 2))  # 2 behind what attends
    elif found := _TRANSFORMER.fullmatch(name):
        single, number, rest = found.groups()
        blocks, within = ("single_blocks", _IN_SINGLE) if single else ("double_blocks", _IN_DOUBLE)
        if rest in within:
            yield f"{blocks}_{number}_{within[rest]}"


def _within(kind: str, rest: str) -> str:
    return f"1_{rest}" if kind == "attentions" else f"0_{_IN_RESNETS.get(rest, rest)}"
