"""Batch-invariant mixtures of experts on CPUs.

Products of a router, and of an expert with any number of tokens, are padded with rows as in
`linear`. The results of a token's experts are added in the order in which its router chose them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.linear import exact_linear
from lockstep_logprobs.hidden import count_missing_rows

ROUTERS = ("GptOssTopKRouter", "MixtralTopKRouter", "Qwen3MoeTopKRouter")
"""Router classes of `transformers` that `route_tokens` supports."""

EXPERTS = ("GptOssExperts", "MixtralExperts", "Qwen3MoeExperts")
"""Expert classes of `transformers` that `compute_experts` supports."""


def route_tokens(router: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """A router's results for some tokens, by its own operations on padded rows."""
    rows = hidden.shape[:-1].numel()
    filled = F.pad(hidden.reshape(rows, -1), (0, 0, 0, count_missing_rows(rows, router.weight)))
    return tuple(x[:rows] for x in type(router).forward(router, filled))


def compute_experts(experts: Any, hidden: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
    """The results of a layer's experts; products use the type of the weights, as in `transformers`.

    Args:
        experts: The `transformers` module of all experts.
        hidden: Hidden states [N, D].
        chosen: Experts of each token, int64 [N, K].
        share: Weight of each expert's result [N, K].
    """
    weights = [
        x.mT if experts.is_transposed else x for x in (experts.gate_up_proj, experts.down_proj)
    ]
    if experts.has_bias:
        biases = [experts.gate_up_proj_bias, experts.down_proj_bias]
    else:
        biases = [None, None]
    expert, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(
        expert, torch.arange(len(weights[0]), device=expert.device), right=True
    )
    with torch.autocast(hidden.device.type, enabled=False):
        rows = hidden.to(weights[0].dtype)[order // chosen.shape[1]]
        parts = rows.split(ends.diff(prepend=ends.new_zeros(1)).tolist())  # the only device sync
        gated = [_gate_experts(experts, x) for x in _apply_each(parts, weights[0], biases[0])]
        out = torch.cat(_apply_each(gated, weights[1], biases[1]))
        each = (
            torch.empty_like(out).index_copy(0, order, out).unflatten(0, chosen.shape)
            * share[:, :, None]
        )
        return reduce(torch.add, each.unbind(1)).to(hidden.dtype)


def _apply_each(parts: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Applies each expert's linear map to its rows."""
    biases = [None] * len(weight) if bias is None else bias.unbind()
    return [exact_linear(x, w, b) for x, w, b in zip(parts, weight.unbind(), biases, strict=True)]


def _gate_experts(experts: Any, x: Tensor) -> Tensor:
    if experts.is_concatenated:
        gate, up = x.chunk(2, -1)
        return experts.act_fn(gate) * up
    gate = x[..., ::2].clamp(max=experts.limit)
    up = x[..., 1::2].clamp(-experts.limit, experts.limit)
    # sigmoid rounds some elements differently
    return (up + 1.0) * (gate / (1.0 + (gate * -experts.alpha).exp()))
