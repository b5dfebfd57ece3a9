"""One rank's pieces of a torch learner: full parameters, or boxes that FSDP or DTensor cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lockstep.learners.pieces import ParameterPiece, TensorBox
from lockstep.models.heads import canonical_name
from lockstep.models.parallelize import CUT
from lockstep.weight_sync.outgoing import choose_sent_dtype


@dataclass(frozen=True, eq=False)
class TorchPiece(ParameterPiece):
    """A piece of a parameter, which is one checkpoint tensor.

    Attributes:
        mesh: Mesh of the ranks that hold the parameter; None: one process.
        merged: Maps a parameter to its weight with the adapter merged; None: it has no adapter.
    """

    mesh: DeviceMesh | None
    merged: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def from_parameter(
        cls, name: str, parameter: nn.Parameter, merged: Callable[[Tensor], Tensor] | None = None
    ) -> TorchPiece:
        held = parameter.detach()
        whole = tuple(parameter.shape)
        if not isinstance(held, DTensor):
            return cls(
                name,
                parameter,
                held,
                (TensorBox(name, whole, (0,) * len(whole), whole, _view_unchanged),),
                None,
                merged,
            )
        mesh = held.device_mesh
        local = held.to_local()
        _, offset = compute_local_shape_and_global_offset(held.shape, mesh, held.placements)
        box = TensorBox(name, whole, tuple(offset), tuple(local.shape), _view_unchanged)
        return cls(name, parameter, local, (box,), mesh, merged)

    @property
    def cut_over(self) -> frozenset[str]:
        held = self.parameter
        names = () if self.mesh is None else self.mesh.mesh_dim_names or ()
        placements = held.placements if isinstance(held, DTensor) else ()
        placed = zip(names, placements, strict=True)
        return frozenset(name for name, placement in placed if not placement.is_replicate())

    @property
    def is_cut_by_fsdp(self) -> bool:
        """True if FSDP shards the parameter and sums its gradient.

        If not, every rank holds all of it that it computes with.
        """
        return self.mesh is not None and CUT in (self.mesh.mesh_dim_names or ())

    def gather_tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        held = self.parameter.detach()
        weight = held if self.merged is None else self.merged(held)
        weight = weight.to(choose_sent_dtype(weight, dtype))
        yield (
            canonical_name(self.name),
            weight.full_tensor() if isinstance(weight, DTensor) else weight,
        )

    def read_gradient(self) -> Tensor:
        """Gradient, summed over ranks with the same piece unless FSDP ignores the parameter."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.local)
        if not isinstance(gradient, DTensor):
            return gradient
        assert isinstance(self.parameter, DTensor), "a gradient is placed as its parameter"
        return gradient.redistribute(placements=self.parameter.placements).to_local()


def _view_unchanged(tensor: Tensor) -> Tensor:
    return tensor
