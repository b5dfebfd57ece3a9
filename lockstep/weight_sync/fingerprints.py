"""Fingerprints of tensors, to prove that two places hold the same bits."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lockstep import keyed

_ROW = 1 << 14  # 64-bit words; their multipliers fit the processor's cache
_SAMPLED_COLUMNS = 16


def fingerprint(tensor: Tensor) -> int:
    """A sum of the tensor's bits, as 64-bit words weighted by odd numbers of their place, mixed with shape and type.

    Any change of one word shows, since an odd weight has an inverse modulo 2⁶⁴; words that change places do but by a
    chance of about 2⁻⁶². It is as fast as memory: each word is read once.
    """
    words = _words(tensor)
    body = words[: words.numel() // _ROW * _ROW].view(-1, _ROW)
    within, rows = _odd("place", _ROW, tensor.device), _odd("row", len(body) + 1, tensor.device)
    tail = words[body.numel() :]
    sums = torch.cat([_sum_weighted(body, within), _sum_weighted(tail[None], within[: tail.numel()])])
    content = int((sums * rows).sum())
    return content ^ keyed.key(str(tensor.dtype), *tensor.shape)


def pick_columns(width: int) -> list[int]:
    """Some columns of a matrix, spread evenly, the first and the last among them: all of a narrow one."""
    count = min(width, _SAMPLED_COLUMNS)
    return [column * (width - 1) // max(count - 1, 1) for column in range(count)]


def column_fingerprint(matrix: Tensor) -> int:
    """Fingerprint of the sampled columns of a matrix; 0 and −0 count as equal."""
    return fingerprint(matrix.detach()[:, pick_columns(matrix.shape[1])] + 0.0)


def _words(tensor: Tensor) -> Tensor:
    """The bits as int64 [·], filled up with zeros."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 or raw.storage_offset() % 8:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 8))
    return raw.view(torch.int64)


def _sum_weighted(words_RC: Tensor, weight_C: Tensor) -> Tensor:
    """Sums of rows, modulo 2⁶⁴. CUDA has no product of integer matrices."""
    return (words_RC * weight_C).sum(-1) if words_RC.is_cuda else words_RC @ weight_C


@functools.lru_cache(maxsize=16)
def _odd(role: str, count: int, device: torch.device) -> Tensor:
    """Odd 64-bit numbers that depend on nothing but role and place, int64 [count]."""
    return (keyed.bits(torch.tensor([keyed.key("fingerprint", role)]), torch.arange(count))[0] | 1).to(device)
