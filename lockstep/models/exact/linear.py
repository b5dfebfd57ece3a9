"""Batch-invariant linear maps and activations on CPUs.

The kernel of a matrix product decides in which order each element is summed, and the number of rows
decides which kernel is used: few rows use another kernel, as do threads that get few rows, and
small products in bf16. Products of a multiple of 8 rows that are large enough all use the same
kernel (`count_missing_rows`). Vectorized activations can round the last elements of a tensor
differently; they are written here in operations that do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.kernels import cast_as_autocast
from lockstep_logprobs.hidden import count_missing_rows
from lockstep_logprobs.kernel import runs_fused


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Batch-invariant `F.linear`; differentiable."""
    rows = x.shape[:-1].numel()
    if missing := count_missing_rows(rows, weight):
        return F.linear(F.pad(x.reshape(rows, -1), (0, 0, 0, missing)), weight, bias)[:rows].view(
            *x.shape[:-1], -1
        )
    return F.linear(x, weight, bias)


def exact_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` on any device: on GPUs a product of fixed tiles, in the type of autocast."""
    if not runs_fused(x):
        return exact_linear(x, weight, bias)
    x, weight = cast_as_autocast(x, weight)
    return _FixedTiles.apply(x, weight, None if bias is None else bias.to(weight.dtype))


def pad_rows(x: Tensor, multiple: int) -> Tensor:
    """Adds zero rows up to a multiple."""
    return add_rows(x, -x.shape[-2] % multiple)


def add_rows(x: Tensor, missing: int) -> Tensor:
    """Adds zero rows; returns `x` itself if none are missing (`F.pad` copies)."""
    if missing:
        return F.pad(x, (0, 0, 0, missing))
    return x


def silu(x: Tensor) -> Tensor:
    """SiLU, x · sigmoid(x), with position-independent rounding; differentiable."""
    if x.requires_grad:
        return _ActivationFunction.apply(x, _compute_silu, torch.ops.aten.silu_backward)
    return _compute_silu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by the tanh approximation, with position-independent rounding; differentiable."""
    if x.requires_grad:
        return _ActivationFunction.apply(
            x, _gelu_tanh, partial(torch.ops.aten.gelu_backward, approximate="tanh")
        )
    return _gelu_tanh(x)


def _compute_silu(x: Tensor) -> Tensor:
    wide = x.float()
    divisor = wide.neg().exp_().add_(1.0)
    return torch.div(wide, divisor, out=divisor).to(x.dtype)


def _gelu_tanh(x: Tensor) -> Tensor:
    wide = x.float()
    inner = wide.square().mul_(0.044715).add_(1.0).mul_(wide).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(wide).mul_(0.5).to(x.dtype)


class _FixedTiles(torch.autograd.Function):
    """A product by Triton's kernel; PyTorch computes its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from lockstep.models.exact.fused.products import multiply_tiles

        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.shape = x.shape
        ctx.has_bias = bias is not None
        return multiply_tiles(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (rows, weight) = ctx.saved_tensors
        (gradient,) = grad_outputs
        slope = gradient.reshape(len(rows), -1)
        of_x = (slope @ weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        of_weight = slope.mT @ rows if ctx.needs_input_grad[1] else None
        return of_x, of_weight, slope.sum(0) if ctx.has_bias else None


class _ActivationFunction(torch.autograd.Function):
    """An activation with position-independent rounding; PyTorch computes its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        compute: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.own_backward = backward
        return compute(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        (gradient,) = grad_outputs
        return ctx.own_backward(gradient, x), None, None
