"""Fingerprints of tensors, to prove that two places hold the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> int:
    """A 64-bit sum of the tensor's bits weighted by odd numbers of their place: any change or move of bits shows."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).reshape(-1).long()
    place = torch.arange(bits.numel(), device=bits.device)
    return int(((bits + tensor.ndim) * ((place * 2654435761) | 1)).sum()) + sum(
        (axis + 1) * size for axis, size in enumerate(tensor.shape)
    )
