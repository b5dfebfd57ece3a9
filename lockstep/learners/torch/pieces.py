"""What one rank holds of each parameter: the tensor itself, or a box cut out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, eq=False)
class Piece:
    """A rank's box of a parameter.

    Attributes:
        name: Of the parameter in its model.
        parameter: As the model has it.
        local: The memory that this rank holds of it.
        whole: Shape of the parameter over all ranks.
        offset: Where the box begins.
        mesh: Of ranks that have other boxes or the same; None: the parameter is whole here.
    """

    name: str
    parameter: nn.Parameter
    local: Tensor
    whole: tuple[int, ...]
    offset: tuple[int, ...]
    mesh: DeviceMesh | None = None

    @classmethod
    def of(cls, name: str, parameter: nn.Parameter) -> Piece:
        held, whole = parameter.detach(), tuple(parameter.shape)
        if not isinstance(held, DTensor):
            return cls(name, parameter, held, whole, (0,) * len(whole))
        mesh = held.device_mesh
        _, offset = compute_local_shape_and_global_offset(held.shape, mesh, held.placements)
        return cls(name, parameter, held.to_local(), whole, tuple(offset), mesh)

    @property
    def cut_over(self) -> frozenset[str]:
        """Dimensions of the mesh over which the parameter is cut; one that FSDP made of two is called by both."""
        held, names = self.parameter, () if self.mesh is None else self.mesh.mesh_dim_names or ()
        placements = held.placements if isinstance(held, DTensor) else ()
        return frozenset(name for name, placed in zip(names, placements, strict=True) if not placed.is_replicate())

    def gathered(self) -> Tensor:
        """The whole parameter, on every rank; all have to ask for it."""
        held = self.parameter.detach()
        return held.full_tensor() if isinstance(held, DTensor) else held

    def gradient(self) -> Tensor:
        """Of this box, summed over the ranks that hold the same; zeros where nothing depends on the parameter."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.local)
        if not isinstance(gradient, DTensor):
            return gradient
        assert isinstance(self.parameter, DTensor), "a gradient is placed as its parameter"
        return gradient.redistribute(placements=self.parameter.placements).to_local()


def norm(pieces: Sequence[Piece], tensors: Iterable[Tensor]) -> Tensor:
    """The length of all tensors together, each the box of its piece: every box counts once, over whatever mesh."""
    squares: dict[frozenset[str], list[Tensor]] = {}
    groups: dict[str, dist.ProcessGroup] = {}
    for piece, tensor in zip(pieces, tensors, strict=True):
        squares.setdefault(piece.cut_over, []).append(tensor)
        groups |= {name: piece.mesh.get_group(name) for name in piece.cut_over if piece.mesh is not None}
    keys = sorted(squares, key=sorted)
    total = torch.stack([nn.utils.get_total_norm(squares[key]).square() for key in keys])
    for name in sorted(groups):
        over = torch.tensor([name in key for key in keys], device=total.device)
        summed = total.clone()
        dist.all_reduce(summed, group=groups[name])
        total = torch.where(over, summed, total)
    return total.sum().sqrt()
