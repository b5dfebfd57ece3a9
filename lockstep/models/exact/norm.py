"""Batch-invariant RMS norms for GPUs.

The order in which PyTorch sums a mean depends on the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

RMS_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Norm classes of `transformers` that `rms_norm` supports."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight · x / √(mean(x²) + eps) in fp32, rounded before the weight, as in `transformers`."""
    wide = x.float()
    mean: Tensor = _MeanSquares.apply(wide)
    return weight * (wide * torch.rsqrt(mean + eps)).to(x.dtype)


def normalize_module(module: Any, x: Tensor) -> Tensor:
    """`rms_norm` with the weight of a `transformers` module; ranks may share the tokens."""
    weight = module.weight
    if not isinstance(x, DTensor):
        return rms_norm(x, weight, module.variance_epsilon)
    held = weight.to_local(grad_placements=[Partial()])
    own = rms_norm(x.to_local(), held, module.variance_epsilon)
    return DTensor.from_local(own, x.device_mesh, x.placements, run_check=False)


def is_rms_norm(module: nn.Module) -> bool:
    """True if `normalize_module` computes the same as a module."""
    return type(module).__name__ in RMS_NORMS


class _MeanSquares(torch.autograd.Function):
    """Mean squares over the last dimension, which is kept with size 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from lockstep.models.exact.fused.products import mean_squares

        ctx.save_for_backward(x)
        return mean_squares(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], 1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        (gradient,) = grad_outputs
        return gradient * x * (2.0 / x.shape[-1])
