"""The threshold of top-p on a CPU in one process; bit-identical to `support`'s passes.

A few tokens usually reach p, so the likeliest are searched first; an approximate sum of all
exponentials tells whether p is reached among them. Other rows, and close calls, are searched digit
by digit: one pass over all tokens for the first digit, then passes over the few tokens that have
it.

Letters: M rows, V columns, K likeliest tokens, N tokens of one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep_logprobs.kernel import register_kernel
from lockstep_logprobs.shard import split_rows
from lockstep_logprobs.softmax import RowSums, sum_block
from lockstep_logprobs.topk import local_topk

BASE = 256
DIGITS = 3

_ONE = 2.0**40
"""Probability of the likeliest token, as an integer: integer sums do not depend on their order."""

_LIKELY = 64
_CLOSE = 2.0**-16
"""Bound on the relative error of the approximate sum, compared with the sum of `compute_masses`."""

_NO_MASS = -44.0
"""Exponent of 2 at which the mass is already 0; exponentials of far smaller numbers are slow."""


def compute_powers(z: Tensor, maximum: Tensor, temperature: float) -> Tensor:
    """log₂ of probabilities relative to the likeliest token's, fp32."""
    return (z - maximum).mul_(math.log2(math.e) / temperature)


def compute_masses(power: Tensor) -> Tensor:
    """Probabilities relative to the likeliest token's, in units of 2⁻⁴⁰, fp32.

    Callers keep the integer part.
    """
    # exp rather than exp2, which rounds the last numbers of a block differently.
    return power.clamp(min=_NO_MASS).mul_(math.log(2.0)).exp_().mul_(_ONE)


@register_kernel(
    "(Tensor logits, float top_p, float temperature, float reach, int? max_rows) -> Tensor",
    lambda logits, *_: logits.new_empty(logits.shape[:1], dtype=torch.float32),
)
def nucleus_floor(
    logits: Tensor, top_p: float, temperature: float, reach: float, max_rows: int | None
) -> Tensor:
    """The smallest logit of each row with which the probability reaches p [M]; see `support`."""
    sums = RowSums.build_empty(len(logits), entropy=False, device=logits.device)
    pieces = list(split_rows(len(logits), logits.shape[1], logits.device, max_rows))
    if pieces:
        work = torch.empty_like(logits[pieces[0]], dtype=torch.float32)
    else:
        work = logits
    for rows in pieces:
        sums[rows] = sum_block(logits[rows], work[: rows.stop - rows.start], None, temperature)
    value_MK, _ = local_topk(logits, _LIKELY, max_rows)
    floor_M, found_M = _search_likeliest(value_MK, sums.total, top_p, temperature, reach)
    floor_M = torch.where(sums.maximum.isfinite(), floor_M, sums.maximum)
    left = (~found_M & sums.maximum.isfinite()).nonzero()[:, 0]
    if len(left):
        floor_M[left] = _search_rows(
            [logits[row] for row in left], sums.maximum[left], top_p, temperature, reach
        )
    return floor_M


def _search_likeliest(
    value_MK: Tensor, total_M: Tensor, top_p: float, temperature: float, reach: float
) -> tuple[Tensor, Tensor]:
    """The threshold among the K likeliest tokens [M], and whether it is certain, bool [M]."""
    power_MK = compute_powers(value_MK, value_MK[:, :1], temperature)
    number_MK = (power_MK * -(BASE**DIGITS / reach)).floor_()
    sum_MK = compute_masses(power_MK).long().cumsum(1)
    goal_M1 = (top_p * _ONE) * total_M.double()[:, None]
    first_M1, last_M1 = (
        (sum_MK < goal_M1 * by).sum(1, keepdim=True) for by in (1.0 - _CLOSE, 1.0 + _CLOSE)
    )
    at_M1 = last_M1.clamp(max=value_MK.shape[1] - 1)
    number_M1 = number_MK.gather(1, at_M1)
    found_M1 = (last_M1 == at_M1) & (number_MK.gather(1, first_M1.clamp(max=at_M1)) == number_M1)
    kept_M1 = (number_MK <= number_M1).sum(1, keepdim=True)
    found_M1 &= kept_M1 < value_MK.shape[1]
    return value_MK.gather(1, (kept_M1 - 1).clamp_(min=0))[:, 0], found_M1[:, 0]


def _search_rows(
    z: Sequence[Tensor], maximum_R: Tensor, top_p: float, temperature: float, reach: float
) -> Tensor:
    """The thresholds of rows [R], searched among all tokens."""
    floor_R = torch.empty_like(maximum_R)
    values = list[Tensor]()
    counts = list[Tensor]()
    indices = list[int]()
    for index, z_V in enumerate(z):
        counted = _count_values(z_V.float())
        if counted is None:
            one = torch.zeros(1, dtype=torch.int64)
            maximum = maximum_R[index : index + 1]
            floor_R[index] = _search_digits(
                z_V.float(), None, one, maximum, top_p, temperature, reach
            )[0]
        else:
            values.append(counted[0])
            counts.append(counted[1])
            indices.append(index)
    if indices:
        row_N = torch.arange(len(indices)).repeat_interleave(
            torch.tensor([len(value_N) for value_N in values])
        )
        maximum = maximum_R[indices]
        found = _search_digits(
            torch.cat(values), torch.cat(counts), row_N, maximum, top_p, temperature, reach
        )
        floor_R[indices] = found
    return floor_R


def _count_values(z_V: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct values of a row that was rounded to bf16, with counts; None for other rows."""
    bits_V = z_V.view(torch.int32)
    if torch.bitwise_and(bits_V, 2**16 - 1).max() > 0:
        return None
    count = torch.bincount((bits_V >> 16).add_(2**15))
    value_N = count.nonzero()[:, 0]
    return (value_N - 2**15).mul_(2**16).int().view(torch.float32), count[value_N]


def _search_digits(
    z_N: Tensor,
    count_N: Tensor | None,
    row_N: Tensor,
    maximum_R: Tensor,
    top_p: float,
    temperature: float,
    reach: float,
) -> Tensor:
    """The thresholds of rows [R], digit by digit.

    Each pass sums only tokens with the earlier digits.

    Args:
        z_N: Logits of all rows.
        count_N: Count of each logit; None: 1.
        row_N: Row of each logit, or [1], one row for all.
        maximum_R: Largest logit of each row.
        top_p: Probability to reach.
        temperature: Divides the logits.
        reach: The digits cover `compute_powers` from 0 down to −reach.
    """
    rows = len(maximum_R)
    start_R = torch.arange(len(maximum_R)) * (BASE + 1)
    power_N = compute_powers(z_N, maximum_R[row_N], temperature)
    mass_N = compute_masses(power_N).long()
    mass_N = mass_N if count_N is None else mass_N.mul_(count_N)
    below_R1 = prefix_R1 = torch.zeros(rows, 1, dtype=torch.int64)
    goal_R1: Tensor | None = None
    for digits in range(1, DIGITS + 1):
        digit_N = (
            (power_N * -(BASE**digits / reach)).sub_(BASE * prefix_R1[row_N, 0]).clamp_(0.0, BASE)
        )
        digit_N = digit_N.int().long().add_(start_R[row_N])  # in two fast steps
        mass_RD = (
            torch.zeros(rows * (BASE + 1), dtype=torch.int64)
            .scatter_add_(0, digit_N, mass_N)
            .view(rows, -1)
        )
        before_RD = mass_RD.cumsum(1) - mass_RD + below_R1
        if goal_R1 is None:
            goal_R1 = (top_p * mass_RD.sum(1, keepdim=True).double()).long()
        digit_R1 = (before_RD[:, :BASE] < goal_R1).sum(1, keepdim=True).clamp_(min=1) - 1
        below_R1 = before_RD.gather(1, digit_R1)
        prefix_R1 = BASE * prefix_R1 + digit_R1
        inside = (digit_N == (start_R + digit_R1[:, 0])[row_N]).nonzero()[:, 0]
        row_N = row_N.expand(len(z_N))[inside]
        z_N = z_N[inside]
        power_N = power_N[inside]
        mass_N = mass_N[inside]
    return torch.full_like(maximum_R, torch.inf).scatter_reduce_(0, row_N, z_N, "amin")
