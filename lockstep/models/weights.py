"""Fingerprints of tensors, to prove that two places hold the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep import keyed

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> int:
    """A 64-bit sum of the tensor's bits weighted by odd numbers of their place, mixed with its shape and type.

    Any single change shows, and so does any move of bits but by a chance of about 2⁻⁴⁰.
    """
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).reshape(-1).long()
    place = torch.arange(bits.numel(), device=bits.device)
    content = int((bits * ((place * 2654435761) | 1)).sum())
    return content ^ keyed.key(str(tensor.dtype), *tensor.shape)
