"""What a matrix product computes with: read by unit vectors, so that what code does with the weights shows, too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep.doctor.probes.weights import likeness

_ROUNDING = 1e-5
"""Of the largest weight: what adding and taking away a bias leaves in fp32."""

ROUNDED = "rounded"
"""Not a cause: weights as one of the types of sixteen bits has them."""


def misused(right: nn.Module, own: nn.Module) -> str | None:
    """What the weights look like that one of two modules computes with, where both hold the same.

    Returns:
        A cause, `ROUNDED`, or None: both compute with what they hold, or are no matrix products.
    """
    if not (isinstance(right, nn.Linear) and isinstance(own, nn.Linear)):
        return None
    for module in (own, right):
        held, used = module.weight.detach().float(), _used(module)
        if used.shape != held.shape or _close(used, held):
            continue
        sixteen = any(_close(used, held.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
        return ROUNDED if sixteen else likeness(used, held)[0]
    return None


@torch.no_grad()
def _used(module: nn.Linear) -> Tensor:
    """The matrix [O, I]; its columns are what unit vectors become."""
    units = torch.eye(module.in_features, dtype=module.weight.dtype, device=module.weight.device)
    return (module(units[None]) - module(torch.zeros_like(units[:1])[None]))[0].T.float()


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= _ROUNDING * b.abs().max())
