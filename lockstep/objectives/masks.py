"""Sums, means and whitening over trainable tokens of a ragged batch.

Legend for this folder: N flat tokens of all sequences, B sequences; `mask_N` is True on trainable
tokens, `lengths` is int64 [B] on the CPU. Values where the mask is off, including NaN, never reach
a result or a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-8  # added to the variance, so that equal values do not divide by 0


def zero_outside_mask(x_N: Tensor, mask_N: Tensor) -> Tensor:
    """The column with zeros where the mask is off. Returns [N]."""
    return x_N.masked_fill(~mask_N, 0.0)


def find_token_rows(lengths: Tensor, device: torch.device) -> Tensor:
    """Index of the sequence that each token belongs to. Returns int64 [N]."""
    return torch.repeat_interleave(torch.arange(lengths.numel()), lengths).to(device)


def sequence_sum(x_N: Tensor, mask_N: Tensor, lengths: Tensor) -> Tensor:
    """Sums the trainable tokens of each sequence. Returns fp32 [B]."""
    row_N = find_token_rows(lengths, x_N.device)
    return x_N.new_zeros(lengths.numel(), dtype=torch.float32).index_add_(
        0, row_N, zero_outside_mask(x_N.float(), mask_N)
    )


def sum_before(x_N: Tensor, lengths: Tensor) -> Tensor:
    """Sums the values before each token in its sequence, in fp64 (an exclusive prefix sum).

    Returns [N].
    """
    before_N = x_N.double().cumsum(0) - x_N.double()
    starts_B = (lengths.cumsum(0) - lengths).clamp(max=max(x_N.numel() - 1, 0)).to(x_N.device)
    return (before_N - before_N[starts_B][find_token_rows(lengths, x_N.device)]).to(x_N.dtype)


def masked_mean(x_N: Tensor, mask_N: Tensor) -> Tensor:
    """Mean over trainable tokens; 0 if there are none. Returns a 0-d tensor."""
    return zero_outside_mask(x_N, mask_N).sum() / mask_N.sum().clamp(min=1)


def masked_whiten(x_N: Tensor, mask_N: Tensor) -> Tensor:
    """Shifts and scales the batch's trainable tokens to mean 0 and (population) variance 1.

    y = (x − mean) / √(var + 1e-8), in fp64, in which the mean of equal fp32 numbers is exact, so
    that they whiten to 0.

    Returns:
        [N], 0 where the mask is off.
    """
    centered_N = x_N.double() - masked_mean(x_N.double(), mask_N)
    variance = masked_mean(centered_N.square(), mask_N)
    return zero_outside_mask(centered_N * torch.rsqrt(variance + _EPSILON), mask_N).to(x_N.dtype)
