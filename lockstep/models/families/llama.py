"""Llama: the plain decoder, of which other families are variants.

Tensor parallelism is combined with sequence parallelism: matrix products are sharded over heads and
hidden units, and everything between them over tokens.
"""

from __future__ import annotations

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from lockstep.models.families.base import MegatronLayers, ModelFamily, TensorParallel


def plan() -> dict[str, ParallelStyle]:
    """The style of each module of the backbone."""
    own: dict[str, ParallelStyle] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "layers.*.input_layernorm": SequenceParallel(),
        "layers.*.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "layers.*.self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.post_attention_layernorm": SequenceParallel(),
        "layers.*.mlp": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        ),
        "layers.*.mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    columns = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
    )
    return own | {f"layers.*.{name}": ColwiseParallel() for name in columns}


TENSORS = {
    "embedding.word_embeddings.weight": ("embed_tokens.weight",),
    "decoder.layers.*.input_layernorm.weight": ("layers.*.input_layernorm.weight",),
    "decoder.layers.*.self_attention.linear_qkv.weight": (
        "layers.*.self_attn.q_proj.weight",
        "layers.*.self_attn.k_proj.weight",
        "layers.*.self_attn.v_proj.weight",
    ),
    "decoder.layers.*.self_attention.linear_proj.weight": ("layers.*.self_attn.o_proj.weight",),
    "decoder.layers.*.pre_mlp_layernorm.weight": ("layers.*.post_attention_layernorm.weight",),
    "decoder.layers.*.mlp.linear_fc1.weight": (
        "layers.*.mlp.gate_proj.weight",
        "layers.*.mlp.up_proj.weight",
    ),
    "decoder.layers.*.mlp.linear_fc2.weight": ("layers.*.mlp.down_proj.weight",),
    "decoder.final_layernorm.weight": ("norm.weight",),
    "output_layer.weight": ("lm_head.weight",),
}

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
REFUSED = ("use_sliding_window", "mlp_bias", "attention_bias")

FAMILY = ModelFamily(
    "llama",
    TensorParallel(plan, DIVIDED),
    MegatronLayers(TENSORS, REFUSED),
    reads_boxes=True,
    plain=True,
)
