"""Exact linear maps of one process and of tensor-parallel ranks, which hold DTensors.

A rank multiplies its own tensors: the kernels of `linear` and `chunks` do not know DTensors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Shard

from lockstep.models.exact.chunks import multiply_in_chunks
from lockstep.models.exact.linear import exact_product


def apply_linear(module: nn.Linear, chunks: int, x: Tensor) -> Tensor:
    """A linear map that sums over this many chunks of its inputs; differentiable."""
    if isinstance(module.weight, DTensor):
        return _apply_local(module, module.weight, chunks, x)
    if chunks == 1:
        return exact_product(x, module.weight, module.bias)
    return multiply_in_chunks(x, module.weight, module.bias, chunks)


def _apply_local(module: nn.Linear, weight: DTensor, chunks: int, x: Any) -> DTensor:
    """The same over ranks that hold rows of the weight, or columns and then share the tokens."""
    mesh = weight.device_mesh
    held = weight.to_local()
    bias: Any = module.bias
    if weight.placements == (Shard(0),):
        own = exact_product(
            x.to_local(grad_placements=[Partial()]),
            held,
            None if bias is None else bias.to_local(),
        )
        return DTensor.from_local(own, mesh, [Shard(-1)], run_check=False)
    assert chunks % mesh.size() == 0, "other numbers of ranks are refused"
    own = multiply_in_chunks(
        x.to_local(),
        held,
        None if bias is None else bias.to_local(grad_placements=[Partial()]),
        chunks // mesh.size(),
        mesh.get_group(),
    )
    return DTensor.from_local(own, mesh, [Shard(-2)], run_check=False)
