"""Shards of a DTensor's mesh: dimension "tp" shards the vocabulary, "cp" the sequences."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.tensor import DTensor


def mesh_group(tensor: DTensor, name: str) -> dist.ProcessGroup | None:
    """The process group of a mesh dimension; None if the mesh lacks it."""
    mesh = tensor.device_mesh
    if name in (mesh.mesh_dim_names or ()):
        return mesh.get_group(name)
    return None


def vocab_range(logits: DTensor) -> tuple[int, int]:
    """This rank's part of the vocabulary on mesh dimension "tp".

    It is cut as DTensor cuts: the last part may be smaller.

    Raises:
        ValueError: The last dimension is not sharded over "tp" only.
    """
    mesh = logits.device_mesh
    start, end = own_range(logits.shape[-1], mesh["tp"].size(), mesh.get_local_rank("tp"))
    if logits.to_local().shape[-1] != end - start:
        raise ValueError(
            f"logits with placements {logits.placements} must be sharded over 'tp' only, along "
            "their last dimension"
        )
    return start, end


def own_range(total: int, size: int, rank: int) -> tuple[int, int]:
    """Start and end of a rank's range of a dimension that DTensor cuts over `size` ranks."""
    share = -(-total // size)
    start = min(rank * share, total)
    return start, min(start + share, total)
