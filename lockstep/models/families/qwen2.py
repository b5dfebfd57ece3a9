"""Qwen2: a Llama whose queries, keys and values have biases."""

from __future__ import annotations

from lockstep.models.families.base import MegatronLayers, ModelFamily, TensorParallel
from lockstep.models.families.llama import DIVIDED, TENSORS, plan

_BIASES = {
    "decoder.layers.*.self_attention.linear_qkv.bias": (
        "layers.*.self_attn.q_proj.bias",
        "layers.*.self_attn.k_proj.bias",
        "layers.*.self_attn.v_proj.bias",
    )
}

FAMILY = ModelFamily(
    "qwen2",
    TensorParallel(plan, DIVIDED),
    MegatronLayers(TENSORS | _BIASES, refused_fields=("use_sliding_window", "mlp_bias")),
    reads_boxes=True,
    plain=True,
)
