"""Linear maps and activations whose rows do not depend on their neighbors, on CPUs.

A matrix product sums each element in an order that its kernel chooses, and the kernel is chosen by the number of rows:
few rows take another one, and threads that are left with few rows do, too. Multiples of 8 rows, up to 2,048, take the
same (`probe` tries it on this machine). An activation's vectors and what is left of them at the end can round
differently; here it is written in operations that round alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 8
"""Products have a multiple of so many rows."""

_MOST_ROWS = 2048


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, each row of which has the same bits in any batch; differentiable."""
    rows = x.shape[:-1].numel()
    if rows > _MOST_ROWS:
        return _Cut.apply(*_cast(x.reshape(rows, -1), weight, bias)).view(*x.shape[:-1], -1)
    if rows % ROWS == 0:
        return F.linear(x, weight, bias)
    return F.linear(pad_rows(x.reshape(rows, -1)), weight, bias)[:rows].view(*x.shape[:-1], -1)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), each element of which has the same bits anywhere; differentiable."""
    return _SiLU.apply(x)


def pad_rows(x_MK: Tensor) -> Tensor:
    """Adds rows of 0 up to a multiple of `ROWS`."""
    return F.pad(x_MK, (0, 0, 0, -len(x_MK) % ROWS))


def _cast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the type in which autocast computes products."""
    device = next(x.device.type for x in tensors if x is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if x is None else x.to(dtype) for x in tensors)


def _cuts(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _MOST_ROWS, rows)) for start in range(0, rows, _MOST_ROWS))


class _Cut(torch.autograd.Function):
    """A product of many rows, cut forward; its gradients are products of all rows at once."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        ctx.has_bias = bias_N is not None
        out_MN = x_MK.new_empty(len(x_MK), len(weight_NK))
        for rows in _cuts(len(x_MK)):
            part = x_MK[rows]
            product = F.linear(pad_rows(part) if len(part) % ROWS else part, weight_NK, bias_N)
            out_MN[rows] = product[: len(part)]
        return out_MN

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient_MN,), (x_MK, weight_NK) = grad_outputs, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            gradient_MN @ weight_NK if of_x else None,
            gradient_MN.t() @ x_MK if of_weight else None,
            gradient_MN.sum(0) if ctx.has_bias and of_bias else None,
        )


class _SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return torch.div(wide, wide.neg().exp_().add_(1.0)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Tensor:
        (x,), (gradient,) = ctx.saved_tensors, grad_outputs
        return torch.ops.aten.silu_backward(gradient, x)
