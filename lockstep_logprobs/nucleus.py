"""The threshold of top-p on a CPU where one process holds the vocabulary: that of `support`'s passes, to the bit.

Mostly few tokens reach p, so the likeliest are looked at first. Whether p is reached among them, an approximate sum of
all exponentials tells, unless it is too close to tell; of rows that are left, one pass finds the first digit, and the
tokens that have it are few.

Letters: M rows, V columns, K likeliest tokens, N tokens of one row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lockstep_logprobs.kernel import kernel
from lockstep_logprobs.shard import blocks
from lockstep_logprobs.softmax import RowSums, sum_block
from lockstep_logprobs.topk import local_topk

BASE = 256
DIGITS = 3

_ONE = 2.0**40
"""The probability of the likeliest token, as an integer: sums of integers do not depend on their order."""

_LIKELY = 64
_CLOSE = 2.0**-16
"""The approximate sum is nearer than this to the sum of `masses`, relatively."""

_NO_MASS = -44.0
"""A power at which the mass is 0; exponentials of far smaller ones are slow."""


def powers(z: Tensor, maximum: Tensor, temperature: float, out: Tensor | None = None) -> Tensor:
    """log₂ of the probabilities over that of the likeliest token, fp32."""
    return torch.sub(z, maximum, out=out).mul_(math.log2(math.e) / temperature)


def masses(power: Tensor, out: Tensor | None = None) -> Tensor:
    """Probabilities over that of the likeliest token, fp32, of which the whole part in units of 2⁻⁴⁰ counts."""
    # A power of 2 rounds the last numbers of a block differently.
    return torch.clamp(power, min=_NO_MASS, out=out).mul_(math.log(2.0)).exp_().mul_(_ONE)


@kernel(
    "(Tensor logits, float top_p, float temperature, float reach, int? max_rows) -> Tensor",
    lambda logits, *_: logits.new_empty(logits.shape[:1], dtype=torch.float32),
)
def nucleus_floor(logits: Tensor, top_p: float, temperature: float, reach: float, max_rows: int | None) -> Tensor:
    """The smallest logit of each row with which the probability reaches p [M]; see `support`."""
    sums = RowSums.zeros(len(logits), entropy=False, device=logits.device)
    pieces = list(blocks(*logits.shape, logits.device, max_rows))
    work = torch.empty_like(logits[pieces[0]], dtype=torch.float32) if pieces else logits
    for rows in pieces:
        sums[rows] = sum_block(logits[rows], work[: rows.stop - rows.start], None, temperature)
    value_MK, _ = local_topk(logits, _LIKELY, max_rows)
    floor_M, found_M = _search_likeliest(value_MK, sums.total, top_p, temperature, reach)
    floor_M = torch.where(sums.maximum.isfinite(), floor_M, sums.maximum)
    left = (~found_M & sums.maximum.isfinite()).nonzero()[:, 0].tolist()
    search = _RowSearch(logits.shape[1] if left else 0, top_p, temperature, reach)
    for row in left:
        floor_M[row] = search.find(logits[row].float(), sums.maximum[row])
    return floor_M


def _search_likeliest(
    value_MK: Tensor, total_M: Tensor, top_p: float, temperature: float, reach: float
) -> tuple[Tensor, Tensor]:
    """The threshold among the likeliest [M], where it lies there for certain, and where it does."""
    power_MK = powers(value_MK, value_MK[:, :1], temperature)
    number_MK, sum_MK = (power_MK * -(BASE**DIGITS / reach)).floor_(), masses(power_MK).long().cumsum(1)
    goal_M1 = (top_p * _ONE) * total_M.double()[:, None]
    first_M1, last_M1 = ((sum_MK < goal_M1 * by).sum(1, keepdim=True) for by in (1.0 - _CLOSE, 1.0 + _CLOSE))
    at_M1 = last_M1.clamp(max=value_MK.shape[1] - 1)
    number_M1 = number_MK.gather(1, at_M1)
    found_M1 = (last_M1 == at_M1) & (number_MK.gather(1, first_M1.clamp(max=at_M1)) == number_M1)
    kept_M1 = (number_MK <= number_M1).sum(1, keepdim=True)
    found_M1 &= kept_M1 < value_MK.shape[1]
    return value_MK.gather(1, (kept_M1 - 1).clamp_(min=0))[:, 0], found_M1[:, 0]


class _RowSearch:
    """Searches rows one after another, in the same memory: new memory for each takes longer than the sums.

    Args:
        columns: Size of the vocabulary.
        top_p: The probability to reach.
        temperature: Divides the logits.
        reach: The power, negative, down to which numbers go.
    """

    def __init__(self, columns: int, top_p: float, temperature: float, reach: float) -> None:
        self._top_p, self._temperature, self._reach = top_p, temperature, reach
        self._power_V, self._work_V = torch.empty(2, columns, dtype=torch.float32)
        self._short_V = torch.empty(columns, dtype=torch.int32)
        self._digit_V, self._mass_V = torch.empty(2, columns, dtype=torch.int64)

    def find(self, z_N: Tensor, maximum: Tensor) -> Tensor:
        """The threshold of a row: digit by digit, each among the tokens that have the digits before."""
        power_N = powers(z_N, maximum, self._temperature, out=self._power_V)
        mass_N = self._mass_V.copy_(masses(power_N, out=self._work_V))
        goal, below, prefix = int(self._top_p * float(mass_N.sum())), 0, 0
        short_N = self._short_V.copy_(torch.mul(power_N, -(BASE / self._reach), out=self._work_V).clamp_(0.0, BASE))
        digit_N = self._digit_V.copy_(short_N)  # in two steps, each of which is fast
        for digits in range(1, DIGITS + 1):
            if digits > 1:
                digit_N = (power_N * -(BASE**digits / self._reach)).sub_(BASE * prefix).clamp_(0.0, BASE).long()
            mass_D = torch.zeros(BASE + 1, dtype=torch.int64).scatter_add_(0, digit_N, mass_N)
            before_D = mass_D.cumsum(0) - mass_D + below
            digit = max(int((before_D[:BASE] < goal).sum()) - 1, 0)
            below, prefix = int(before_D[digit]), BASE * prefix + digit
            inside = (digit_N == digit).nonzero()[:, 0]
            z_N, power_N, mass_N = z_N[inside], power_N[inside], mass_N[inside]
        return z_N.min()
