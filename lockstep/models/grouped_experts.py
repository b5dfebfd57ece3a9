"""Mixtures of experts in the type of autocast.

Autocast does not cover the grouped product of all experts. With fp32 weights, a GPU would compute
that product in fp32, expert by expert, and sync with the host at each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

OF_TRANSFORMERS = "grouped_mm"
NAME = "lockstep_grouped"


def compute_experts(experts: nn.Module, hidden: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
    """The results of a layer's experts, as `transformers` computes them, in the type of autocast.

    Args:
        experts: The `transformers` module of all experts.
        hidden: Hidden states [N, D].
        chosen: Experts of each token, int64 [N, K].
        share: Weight of each expert's result [N, K].
    """
    kind = hidden.device.type
    if not torch.is_autocast_enabled(kind):
        return grouped_mm_experts_forward(experts, hidden, chosen, share)
    dtype = torch.get_autocast_dtype(kind)
    weights = {name: weight.to(dtype) for name, weight in experts.named_parameters(recurse=False)}
    with torch.autocast(kind, enabled=False):  # the call comes back here and computes
        return functional_call(experts, weights, (hidden.to(dtype), chosen, share)).to(hidden.dtype)


ALL_EXPERTS_FUNCTIONS.register(NAME, compute_experts)
