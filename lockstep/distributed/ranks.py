"""The ranks that hold one model together, as a mesh over rows, layers, positions, and heads and
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

Dimension = Literal["dp_replicate", "dp", "pp", "cp", "tp"]
DIMENSIONS: tuple[Dimension, ...] = ("dp_replicate", "dp", "pp", "cp", "tp")
"""Dimensions from the outermost to the innermost: tensor-parallel ranks have consecutive numbers on
a machine.
"""


@dataclass(frozen=True)
class Ranks:
    """This rank's place among all; a mesh of None is one process.

    Attributes:
        mesh: A mesh with the dimensions `DIMENSIONS`, including those of size 1.
    """

    mesh: DeviceMesh | None = None

    @classmethod
    def of(cls, device: str, sizes: Mapping[str, int]) -> Ranks:
        """Builds the mesh of all processes of the default group from the size of each dimension; a
        collective.
        """
        return cls(
            init_device_mesh(
                device, tuple(sizes[name] for name in DIMENSIONS), mesh_dim_names=DIMENSIONS
            )
        )

    def size(self, name: Dimension) -> int:
        """Number of ranks along a dimension."""
        if self.mesh is None:
            return 1
        return self.mesh.size(DIMENSIONS.index(name))

    def index(self, name: Dimension) -> int:
        """Index of this rank along a dimension."""
        if self.mesh is None:
            return 0
        return self.mesh.get_local_rank(name)

    def group(self, name: Dimension) -> dist.ProcessGroup | None:
        """The process group of this rank along a dimension; None if it is alone there."""
        if self.mesh is None or self.size(name) == 1:
            return None
        return self.mesh.get_group(name)

    def joint_group(self, *names: Dimension) -> dist.ProcessGroup | None:
        """The process group of this rank along several dimensions, None if it is alone there; a
        collective.
        """
        several: list[Dimension] = [name for name in names if self.size(name) > 1]
        if self.mesh is None or len(several) < 2:
            if several:
                return self.group(several[0])
            return None
        return self.mesh[tuple(several)]._flatten("_".join(several)).get_group()

    @property
    def count(self) -> int:
        """Number of all ranks."""
        return prod(self.size(name) for name in DIMENSIONS)

    @property
    def number(self) -> int:
        """Number of this rank among all, in the order of the mesh."""
        number = 0
        for name in DIMENSIONS:
            number = number * self.size(name) + self.index(name)
        return number


ALONE = Ranks()
