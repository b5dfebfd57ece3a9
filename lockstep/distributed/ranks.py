"""The ranks of one model, as a mesh over rows, layers, positions, and heads and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

MeshDimension = Literal["dp_replicate", "dp", "pp", "cp", "tp"]
DIMENSIONS: tuple[MeshDimension, ...] = ("dp_replicate", "dp", "pp", "cp", "tp")
"""Dimensions, outermost first: tensor-parallel ranks are consecutive on a machine."""


@dataclass(frozen=True)
class RankMesh:
    """This rank's position in the mesh; without a mesh, the only process.

    Attributes:
        mesh: Mesh with the dimensions `DIMENSIONS`, including size 1.
    """

    mesh: DeviceMesh | None = None

    @classmethod
    def from_sizes(cls, device: str, sizes: Mapping[str, int]) -> RankMesh:
        """Builds the mesh of the default group's processes from dimension sizes; a collective."""
        return cls(
            init_device_mesh(
                device, tuple(sizes[name] for name in DIMENSIONS), mesh_dim_names=DIMENSIONS
            )
        )

    def size(self, name: MeshDimension) -> int:
        """Number of ranks along a dimension."""
        if self.mesh is None:
            return 1
        return self.mesh.size(DIMENSIONS.index(name))

    def index(self, name: MeshDimension) -> int:
        """Index of this rank along a dimension."""
        if self.mesh is None:
            return 0
        return self.mesh.get_local_rank(name)

    def group(self, name: MeshDimension) -> dist.ProcessGroup | None:
        """The process group of this rank along a dimension; None if it has one rank."""
        if self.mesh is None or self.size(name) == 1:
            return None
        return self.mesh.get_group(name)

    def joint_group(self, *names: MeshDimension) -> dist.ProcessGroup | None:
        """This rank's process group along several dimensions; None if alone; a collective."""
        several: list[MeshDimension] = [name for name in names if self.size(name) > 1]
        if self.mesh is None or len(several) < 2:
            if several:
                return self.group(several[0])
            return None
        return self.mesh[tuple(several)]._flatten("_".join(several)).get_group()

    @property
    def rank_count(self) -> int:
        """Number of all ranks."""
        return prod(map(self.size, DIMENSIONS))

    @property
    def rank_number(self) -> int:
        """Index of this rank among all, in mesh order."""
        number = 0
        for name in DIMENSIONS:
            number = number * self.size(name) + self.index(name)
        return number


ALONE = RankMesh()
