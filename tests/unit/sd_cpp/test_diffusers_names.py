from __future__ import annotations

import pytest

from engines.sd_cpp.diffusers_names import checkpoint_names


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("conv_in", "input_blocks_0_0"),
        ("time_embedding_linear_2", "time_embed_2"),
        (
            "down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
            "input_blocks_1_1_transformer_blocks_0_attn1_to_q",
        ),
        ("down_blocks_2_attentions_1_proj_in", "input_blocks_8_1_proj_in"),
        ("down_blocks_3_resnets_1_conv1", "input_blocks_11_0_in_layers_2"),
        ("down_blocks_0_downsamplers_0_conv", "input_blocks_3_0_op"),
        ("mid_block_attentions_0_transformer_blocks_0_ff_net_2", "middle_block_1_transformer_blocks_0_ff_net_2"),
        ("mid_block_resnets_1_time_emb_proj", "middle_block_2_emb_layers_1"),
        ("up_blocks_0_resnets_0_conv_shortcut", "output_blocks_0_0_skip_connection"),
        (
            "up_blocks_3_attentions_2_transformer_blocks_0_attn2_to_out_0",
            "output_blocks_11_1_transformer_blocks_0_attn2_to_out_0",
        ),
        ("up_blocks_1_upsamplers_0_conv", "output_blocks_5_2_conv"),
        ("transformer_blocks_7_ff_context_net_2", "double_blocks_7_txt_mlp_2"),
        ("single_transformer_blocks_12_proj_out", "single_blocks_12_linear2"),
    ],
)
def test_a_tensor_is_found_by_its_other_name(name: str, own: str) -> None:
    """The blocks of SD 1.5, whose checkpoint has 12 going down and 12 going up, and those of Flux."""
    assert own in checkpoint_names(name)


@pytest.mark.parametrize("name", ["", "down_blocks", "double_blocks_0_img_attn_proj", "transformer_blocks_0_attn_to_q"])
def test_other_names_mean_nothing_here(name: str) -> None:
    """Neither a checkpoint's own, nor what it keeps as a part of something."""
    assert list(checkpoint_names(name)) == []
