"""Which tokens top-k and top-p keep: all whose logit reaches a threshold, one number per row, found without a sort.

A rank that holds some columns of the vocabulary needs no more than this number to know which of its tokens can be
drawn, and equal logits stay or go together (docs/adr/0005).

Letters: M rows, v this rank's columns, k likeliest tokens, C ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.checks import check_rows, check_temperature
from lockstep_logprobs.collectives import all_gather, all_reduce
from lockstep_logprobs.shard import Shard, blocks
from lockstep_logprobs.topk import local_topk

_FEW = 128
"""A vocabulary up to this size is sorted faster than searched."""

_BASE = 256
_DIGITS = 3
_VOCABULARY_BITS = 22
"""No vocabulary has more than 2 to this power of tokens."""

_ONE = 2.0**40
"""The probability of the likeliest token, as an integer: sums of integers do not depend on their order."""

_COPIES = 6
"""A pass of the search takes two fp32 and two int64 arrays."""


@torch.no_grad()
def support_floor(
    logits_Mv: Tensor,
    shard: Shard | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    temperature: float = 1.0,
    max_rows: int | None = None,
) -> Tensor:
    """The threshold of each row: tokens whose logit is not below it are kept.

    Top-k keeps the k largest logits and all that equal the smallest of these. Top-p then keeps, of what is left and
    renormalised, the likeliest tokens up to the one with which their probability reaches p, and all that equal it; the
    likeliest token always stays. In a search over the whole vocabulary, logits that are closer than two millionths of a
    nat may count as equal. The threshold is the same on all ranks, to the bit, however the vocabulary is cut.

    Args:
        logits_Mv: Logits of this rank's columns, of any floating type.
        shard: Which columns these are; None: one process holds all.
        top_k: How many to keep; None, or a number below 1: all.
        top_p: The probability to reach; None, or from 1 on: all are kept. 0 keeps the likeliest.
        temperature: Divides the logits before probabilities are formed.
        max_rows: A bound on the rows of a block; it changes memory and speed, never values.

    Returns:
        fp32 [M], in units of the given logits: the temperature is not in it.
    """
    check_rows(logits_Mv)
    check_temperature(temperature)
    top_p = 1.0 if top_p is None else top_p
    if not top_p >= 0:
        raise ValueError(f"top_p is {top_p}, but is a probability; 1 keeps every token")
    search = _Search(logits_Mv, shard or Shard(), top_p, temperature, max_rows)
    if top_k is not None and top_k > 0:
        return search.among_likeliest(top_k)
    if top_p >= 1.0:
        return logits_Mv.new_full(logits_Mv.shape[:1], -math.inf, dtype=torch.float32)
    if search.shard.group is None and logits_Mv.shape[1] <= _FEW:
        return search.nucleus(logits_Mv.float().sort(descending=True).values)
    return search.among_all()


@dataclass(frozen=True)
class _Search:
    """What `support_floor` was given."""

    logits: Tensor
    shard: Shard
    top_p: float
    temperature: float
    max_rows: int | None

    def among_likeliest(self, k: int) -> Tensor:
        """The threshold of top-k, and of top-p after it: with one all-gather."""
        group = self.shard.group
        k = k if group else min(k, self.logits.shape[1])
        value_Mk = local_topk(self.logits, k, self.max_rows)[0]
        value_Mk = F.pad(value_Mk, (0, k - value_Mk.shape[1]), value=-math.inf)
        if self.top_p >= 1.0:
            return _best(all_gather(value_Mk, group))[:, -1]
        equal_M1 = torch.zeros_like(value_Mk[:, -1:])
        for rows in self._blocks(1):
            z = self.logits[rows]
            same = torch.eq(z, value_Mk[rows, -1:], out=torch.empty_like(z, dtype=torch.float32))
            equal_M1[rows] = same.sum(1, keepdim=True)
        value_CMk, equal_CM1 = all_gather(torch.cat([value_Mk, equal_M1], 1), group).split([k, 1], -1)
        best_Mk = _best(value_CMk)
        last_M1 = best_Mk[:, -1:]
        # A rank whose own k-th is smaller than that of all has among its k all that equal the latter.
        among_CM1 = (value_CMk == last_M1).sum(-1, keepdim=True)
        equal_M1 = torch.where(value_CMk[..., -1:] == last_M1, equal_CM1, among_CM1).sum(0)
        return self.nucleus(best_Mk, equal_M1 - (best_Mk == last_M1).sum(1, keepdim=True))

    def nucleus(self, best_Mk: Tensor, further_M1: Tensor | float = 0.0) -> Tensor:
        """The threshold of top-p among the k largest logits, in order, and so many more that equal the last of them."""
        weight_Mk = ((best_Mk - best_Mk[:, :1]).double() / self.temperature).exp()
        total_M1 = weight_Mk.sum(1, keepdim=True) + further_M1 * weight_Mk[:, -1:]
        before_Mk = weight_Mk.cumsum(1) - weight_Mk
        kept_M1 = (before_Mk < self.top_p * total_M1).sum(1, keepdim=True).clamp(min=1)
        return best_Mk.gather(1, kept_M1 - 1)[:, 0]

    def among_all(self) -> Tensor:
        """The threshold of top-p over the whole vocabulary: three digits of the base 256, from the highest on.

        A token's distance from the row's maximum, in powers of 2, becomes a number of 24 bits, 0 at the maximum. Each
        pass sums probabilities by the next digit, over the tokens that have the row's earlier digits; the row's next
        digit is the one in which the sum from the maximum on reaches p. The last pass finds the smallest logit there.
        """
        device, group = self.logits.device, self.shard.group
        maximum_M1 = torch.full((len(self.logits), 1), -math.inf, dtype=torch.float32, device=device)
        for rows in self._blocks(1):
            maximum_M1[rows] = self.logits[rows].amax(1, keepdim=True)
        all_reduce(maximum_M1, group, dist.ReduceOp.MAX)
        # A token is kept only if its probability is at least (1 − p)/V.
        reach = _VOCABULARY_BITS - math.log2(1.0 - self.top_p)
        prefix_M1 = torch.zeros_like(maximum_M1)
        for digits in range(1, _DIGITS + 1):
            mass_MD = all_reduce(self._mass(maximum_M1, _BASE * prefix_M1, _BASE**digits / reach), group)
            before_MD = mass_MD.cumsum(1)[:, :_BASE]
            goal_M1 = (self.top_p * mass_MD.sum(1, keepdim=True).double()).long()
            digit_M1 = (before_MD < goal_M1).sum(1, keepdim=True).clamp(min=1) - 1
            prefix_M1 = _BASE * prefix_M1 + digit_M1
        floor_M1 = torch.full_like(maximum_M1, math.inf)
        for rows in self._blocks(2):
            below = self._powers(rows, maximum_M1).mul_(-(_BASE**_DIGITS) / reach).floor_().gt_(prefix_M1[rows])
            least = below.sub_(0.5).mul_(math.inf)  # −∞ for what is kept, ∞ for what is not
            floor_M1[rows] = torch.maximum(self.logits[rows], least, out=least).amin(1, keepdim=True)
        return all_reduce(floor_M1, group, dist.ReduceOp.MIN)[:, 0]

    def _mass(self, maximum_M1: Tensor, prefix_M1: Tensor, scale: float) -> Tensor:
        """Sums of probabilities, in units of the likeliest token's: int64 [M, 1 + digits + 1].

        In the first column those of tokens with a smaller prefix, in the last those with a larger one.
        """
        mass_MD = torch.zeros(len(self.logits), _BASE + 2, dtype=torch.int64, device=self.logits.device)
        for rows in self._blocks(_COPIES):
            power = self._powers(rows, maximum_M1)
            digit = (power * -scale).floor_().sub_(prefix_M1[rows] - 1.0)
            digit.nan_to_num_(0.0).clamp_(0.0, _BASE + 1.0)  # a NaN may spoil its row, but must not index elsewhere
            mass_MD[rows].scatter_add_(1, digit.long(), power.exp2_().mul_(_ONE).long())
        return mass_MD

    def _powers(self, rows: slice, maximum_M1: Tensor) -> Tensor:
        """log₂ of the probabilities over that of the likeliest token, fp32."""
        return (self.logits[rows] - maximum_M1[rows]).mul_(math.log2(math.e) / self.temperature)

    def _blocks(self, arrays: int) -> Iterator[slice]:
        """Blocks of rows for a pass that takes the memory of so many fp32 copies."""
        rows, columns = self.logits.shape
        return blocks(rows, arrays * columns, self.logits.device, self.max_rows)


def _best(value_CMk: Tensor) -> Tensor:
    """The k largest of the ranks' own k largest, largest first. Returns [M, k]."""
    if len(value_CMk) == 1:
        return value_CMk[0]
    return value_CMk.movedim(0, 1).flatten(1).topk(value_CMk.shape[-1]).values
