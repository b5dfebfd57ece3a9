"""Fingerprints of tensors, to prove that two places hold the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep import keyed

_PIECE = 1 << 22  # elements that are widened to 64 bits at a time
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> int:
    """A 64-bit sum of the tensor's bits weighted by odd numbers of their place, mixed with its shape and type.

    Any single change shows, and so does any move of bits but by a chance of about 2⁻⁴⁰.
    """
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).reshape(-1)
    sums = [_weighted_sum(piece, start * _PIECE) for start, piece in enumerate(bits.split(_PIECE))]
    content = int(torch.stack(sums).sum()) if sums else 0
    return content ^ keyed.key(str(tensor.dtype), *tensor.shape)


def _weighted_sum(bits: Tensor, start: int) -> Tensor:
    place = torch.arange(start, start + bits.numel(), device=bits.device)
    return (bits.long() * ((place * 2654435761) | 1)).sum()
