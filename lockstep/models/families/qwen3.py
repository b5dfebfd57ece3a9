"""Qwen3: a Llama whose queries and keys have norms, sharded over heads like them."""

from __future__ import annotations

from torch.distributed.tensor.parallel import ParallelStyle, SequenceParallel

from lockstep.models.families.base import MegatronLayers, ModelFamily, TensorParallel
from lockstep.models.families.llama import DIVIDED, REFUSED, TENSORS, plan

_NORMS = {
    "decoder.layers.*.self_attention.q_layernorm.weight": ("layers.*.self_attn.q_norm.weight",),
    "decoder.layers.*.self_attention.k_layernorm.weight": ("layers.*.self_attn.k_norm.weight",),
}


def _plan_with_norms() -> dict[str, ParallelStyle]:
    norms = ("q_norm", "k_norm")
    over_heads: dict[str, SequenceParallel] = {}
    for name in norms:
        over_heads[f"layers.*.self_attn.{name}"] = SequenceParallel(
            sequence_dim=2, use_local_output=True
        )
    return plan() | over_heads


FAMILY = ModelFamily(
    "qwen3",
    TensorParallel(_plan_with_norms, DIVIDED),
    MegatronLayers(TENSORS | _NORMS, REFUSED),
    reads_boxes=True,
    plain=True,
)
