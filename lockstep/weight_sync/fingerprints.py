"""Fingerprints of tensors, to prove that two places hold the same bits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep import keyed

_ROW = 1 << 14  # 64-bit words; their multipliers fit the processor's cache
_SAMPLED_COLUMNS = 16
_SHORTEST_TABLE = 64


@dataclass(frozen=True)
class Taken:
    """A fingerprint that was taken, and not read yet: its content is still on the tensor's device.

    Attributes:
        content: Sum of the tensor's bits, int64.
        kind: A number of its type and shape.
    """

    content: Tensor
    kind: int


def fingerprint(tensor: Tensor) -> int:
    """A sum of the tensor's bits, as 64-bit words weighted by odd numbers of their place, mixed with shape and type.

    Any change of one word shows, since an odd weight has an inverse modulo 2⁶⁴; words that change places do but by a
    chance of about 2⁻⁶². It is as fast as memory: each word is read once.
    """
    return read([take(tensor)])[0]


def fingerprints(named: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """The fingerprint of each tensor, by name; a device is waited for once."""
    taken = {name: take(tensor) for name, tensor in named}
    return dict(zip(taken, read(list(taken.values())), strict=True))


def read(taken: Sequence[Taken]) -> list[int]:
    """Fingerprints that were taken, in one transfer."""
    if not taken:
        return []
    device = taken[0].content.device
    contents = torch.stack([one.content.to(device) for one in taken]).tolist()
    return [content ^ one.kind for content, one in zip(contents, taken, strict=True)]


def take(tensor: Tensor) -> Taken:
    """Takes the fingerprint of a tensor, and waits for nothing."""
    words = _words(tensor)
    body = words[: words.numel() // _ROW * _ROW].view(-1, _ROW)
    within, rows = _odd("place", _ROW, tensor.device), _odd_rows(len(body) + 1, tensor.device)
    tail = words[body.numel() :]
    sums = torch.cat([_sum_weighted(body, within), _sum_weighted(tail[None], within[: tail.numel()])])
    return Taken((sums * rows).sum(), keyed.key(str(tensor.dtype), *tensor.shape))


def pick_columns(width: int) -> list[int]:
    """Some columns of a matrix, spread evenly, the first and the last among them: all of a narrow one."""
    count = min(width, _SAMPLED_COLUMNS)
    return [column * (width - 1) // max(count - 1, 1) for column in range(count)]


def column_fingerprint(matrix: Tensor) -> int:
    """Fingerprint of the sampled columns of a matrix; 0 and −0 count as equal."""
    return read([take_columns(matrix)])[0]


def take_columns(matrix: Tensor) -> Taken:
    """Takes the fingerprint of the sampled columns of a matrix, and waits for nothing."""
    return take(matrix.detach()[:, _columns(matrix.shape[1], matrix.device)] + 0.0)


@functools.lru_cache(maxsize=64)
def _columns(width: int, device: torch.device) -> Tensor:
    return torch.tensor(pick_columns(width), device=device)


def _words(tensor: Tensor) -> Tensor:
    """The bits as int64 [·], filled up with zeros."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 8 or raw.storage_offset() % 8:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 8))
    return raw.view(torch.int64)


def _sum_weighted(words_RC: Tensor, weight_C: Tensor) -> Tensor:
    """Sums of rows, modulo 2⁶⁴. CUDA has no product of integer matrices."""
    return (words_RC * weight_C).sum(-1) if words_RC.is_cuda else words_RC @ weight_C


def _odd_rows(count: int, device: torch.device) -> Tensor:
    """Odd numbers of so many rows, the beginning of a table that matrices of other sizes read, too."""
    return _odd("row", max(_SHORTEST_TABLE, 1 << (count - 1).bit_length()), device)[:count]


@functools.lru_cache(maxsize=16)
def _odd(role: str, count: int, device: torch.device) -> Tensor:
    """Odd 64-bit numbers that depend on nothing but role and place, int64 [count]."""
    return (keyed.bits(torch.tensor([keyed.key("fingerprint", role)]), torch.arange(count))[0] | 1).to(device)
