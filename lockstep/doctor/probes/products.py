"""What a matrix product computes with: read by unit vectors, so that what code does with the weights shows, too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lockstep.doctor.probes.weights import likeness

_ROUNDING = 1e-5
"""Of the largest weight: what adding and taking away a bias leaves in fp32."""

ROUNDED = "rounded"
"""Not a cause: weights as one of the types of sixteen bits has them, or products that are rounded."""

_ANOTHER_SIZE = 3.0
"""Of the vectors: what was rounded before they came grows with them, and what is rounded afterwards does not."""


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
        if not _close(_used(module, _ANOTHER_SIZE), used):
            return ROUNDED
        sixteen = any(_close(used, held.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16))
        return ROUNDED if sixteen else likeness(used, held)[0]
    return None


def misread(right: nn.Module, own: nn.Module, inner: str) -> str | None:
    """The same of a block that multiplies in its own way, past the module that holds the weights.

    Args:
        right: The block of one network.
        own: That of the other.
        inner: The module in both that is given the product.
    """
    size = next(module.in_features for module in right.modules() if isinstance(module, nn.Linear))
    should, used = (_reaching(block, inner, size) for block in (right, own))
    return None if used.shape != should.shape or _close(used, should) else likeness(used, should)[0]


def _used(module: nn.Linear, size: float = 1.0) -> Tensor:
    """The matrix [O, I]; its columns are what unit vectors become, or others of one number."""
    return _columns(lambda x: module(size * x) / size, module.in_features, module.weight)


def _reaching(block: nn.Module, inner: str, size: int) -> Tensor:
    """What arrives at a module inside, as a matrix [O, I] of what the block is given."""
    arrived: list[Tensor] = []

    def read(x: Tensor) -> Tensor:
        block(x)
        return arrived.pop()

    with block.get_submodule(inner).register_forward_pre_hook(lambda _, inputs: arrived.append(inputs[0])):
        return _columns(read, size, next(block.parameters()))


@torch.no_grad()
def _columns(product: Callable[[Tensor], Tensor], size: int, like: Tensor) -> Tensor:
    units = torch.eye(size, dtype=like.dtype, device=like.device)
    return (product(units[None]) - product(torch.zeros_like(units[:1])[None]))[0].T.float()


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= _ROUNDING * b.abs().max())
