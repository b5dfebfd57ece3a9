"""Fingerprints of tensors, which prove that two copies have the same bits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core import keyed

_LANES = 16 * 3067
"""32-bit words per row.

3067 is prime, so that elements of a matrix's column rarely fall into the same lane.
"""
_ROWS_ON_DEVICE = 256
_SAMPLED_COLUMNS = 16
_SHORTEST_TABLE = 64


@dataclass(frozen=True)
class PendingFingerprint:
    """A computed fingerprint whose content is still on the tensor's device.

    Attributes:
        content: Weighted sum of the tensor's bits, int64.
        kind: Hash of its type and shape.
    """

    content: Tensor
    kind: int


def fingerprint_tensor(tensor: Tensor) -> int:
    """A weighted sum of the tensor's bits, mixed with shape and type.

    Rows of 32-bit words are summed modulo 2³², each row times its own odd number; the resulting
    lanes are summed modulo 2⁶⁴, each times its own odd number. Any change of one word shows, since
    odd numbers have inverses. A swap of two words in different lanes goes unseen with a chance of
    about 2⁻³², however few bits they differ in; a swap within a lane, of words a multiple of
    `_LANES` apart, goes unseen if they differ only in their highest bits.
    """
    return read_fingerprints([start_fingerprint(tensor)])[0]


def read_fingerprints(pending: Sequence[PendingFingerprint]) -> list[int]:
    """Reads computed fingerprints in one transfer from the device."""
    if not pending:
        return []
    device = pending[0].content.device
    contents = torch.stack([one.content.to(device) for one in pending]).tolist()
    return [content ^ one.kind for content, one in zip(contents, pending, strict=True)]


def start_fingerprint(tensor: Tensor) -> PendingFingerprint:
    """Computes the fingerprint of a tensor, without a device sync."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 4 or raw.storage_offset() % 4:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
    words = raw.view(torch.int32)
    kind = _hash_dtype_shape(tensor.dtype, tensor.shape)
    if words.is_cuda:
        return PendingFingerprint(_sum_lanes(_sum_rows_at_once(words)), kind)
    rows = words.split(_LANES)
    sums = torch.zeros_like(rows[0])
    for row, odd in zip(rows, _odd_numbers(_table_length(len(rows))), strict=False):
        sums[: row.numel()].add_(row, alpha=odd)
    return PendingFingerprint(_sum_lanes(sums), kind)


def _sum_rows_at_once(words: Tensor) -> Tensor:
    """Sum of all rows of words, each times its odd number, in few operations for GPUs."""
    lanes = min(len(words), _LANES)
    odd_R = _draw_odd_numbers("row", _table_length(-(-len(words) // _LANES)), words.device).to(
        torch.int32
    )
    sums = words.new_zeros(lanes)
    for number, stretch in enumerate(words.split(_ROWS_ON_DEVICE * _LANES)):
        rows_RC = torch.nn.functional.pad(stretch, (0, -len(stretch) % max(lanes, 1))).view(
            -1, lanes
        )
        first = number * _ROWS_ON_DEVICE
        sums += (rows_RC * odd_R[first : first + len(rows_RC), None]).sum(0, dtype=torch.int32)
    return sums


def _sum_lanes(sums: Tensor) -> Tensor:
    """Sum of all lanes, each times its odd number. CUDA has no product of integer vectors."""
    odd = _draw_odd_numbers("lane", _LANES, sums.device)[: len(sums)]
    if sums.is_cuda:
        return (sums.to(torch.int64) * odd).sum()
    return sums.to(torch.int64) @ odd


def pick_columns(width: int) -> list[int]:
    """Columns of a matrix, evenly spaced from first to last; all columns of a narrow matrix."""
    count = min(width, _SAMPLED_COLUMNS)
    return [column * (width - 1) // max(count - 1, 1) for column in range(count)]


def column_fingerprint(matrix: Tensor) -> int:
    """Fingerprint of a matrix's sampled columns; 0 and −0 count as equal."""
    return read_fingerprints([start_column_fingerprint(matrix)])[0]


def start_column_fingerprint(matrix: Tensor) -> PendingFingerprint:
    """Computes the fingerprint of a matrix's sampled columns, without a device sync."""
    return start_fingerprint(
        matrix.detach().index_select(1, _column_indices(matrix.shape[1], matrix.device)) + 0.0
    )


@functools.lru_cache(maxsize=64)
def _column_indices(width: int, device: torch.device) -> Tensor:
    return torch.tensor(pick_columns(width), device=device)


@functools.lru_cache(maxsize=1024)
def _hash_dtype_shape(dtype: torch.dtype, shape: torch.Size) -> int:
    return keyed.hash_key(str(dtype), *shape)


def _table_length(rows: int) -> int:
    """Table length for `rows` rows: a power of two, so that similar tensors share a table."""
    return max(_SHORTEST_TABLE, 1 << (rows - 1).bit_length())


@functools.lru_cache(maxsize=16)
def _odd_numbers(count: int) -> list[int]:
    return _draw_odd_numbers("row", count, torch.device("cpu")).to(torch.int32).tolist()


@functools.lru_cache(maxsize=16)
def _draw_odd_numbers(role: str, count: int, device: torch.device) -> Tensor:
    """Odd 64-bit numbers that depend only on role and index, int64 [count]."""
    return (
        keyed.draw_bits(torch.tensor([keyed.hash_key("fingerprint", role)]), torch.arange(count))[0]
        | 1
    ).to(device)
