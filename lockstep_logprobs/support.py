"""The tokens that min-p, top-k and top-p keep: those at or above a threshold, without a sort.

A rank that holds some columns of the vocabulary needs only one number per row to know which of its
tokens can be sampled, and equal logits are kept or dropped together (docs/adr/0005).

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
from lockstep_logprobs.kernel import register_kernel
from lockstep_logprobs.nucleus import BASE, DIGITS, compute_masses, compute_powers, nucleus_floor
from lockstep_logprobs.shard import WHOLE, Shard, split_rows
from lockstep_logprobs.topk import local_topk

_FEW = 128
"""Largest vocabulary for which a sort is faster than a search."""

_VOCABULARY_BITS = 22
"""Bits of a token id; a vocabulary has at most 2 to this power of tokens."""

_COPIES = 6
"""Memory of a search pass in fp32 copies: two fp32 and two int64 arrays."""


@torch.no_grad()
def support_floor(
    logits_Mv: Tensor,
    shard: Shard = WHOLE,
    *,
    top_k: int | None = None,
    top_p: float | None = 1.0,
    min_p: float = 0.0,
    temperature: float = 1.0,
    max_rows: int | None = None,
) -> Tensor:
    """The threshold of each row: keeps tokens whose logit is not below it.

    Min-p keeps tokens that are at least `min_p` times as likely as the likeliest. Of these, top-k
    keeps the k largest logits and all equal to the smallest of them. Top-p then renormalizes and
    keeps the likeliest tokens up to the one with which their probability reaches p, and all equal
    to it; the likeliest token always stays. In a search over the full vocabulary, logits that are
    closer than two millionths of a nat may count as equal. The threshold is bit-identical on all
    ranks, however the vocabulary is sharded. The exception: on a GPU, Triton's kernel for one
    process may differ from shards in a row whose probability meets p to seven digits.

    Args:
        logits_Mv: Logits of this rank's columns, of any floating type.
        shard: This rank's columns; by default one process holds all.
        top_k: Number of tokens to keep; None or a number below 1: all.
        top_p: Probability to reach; None or ≥ 1: all; 0: only the likeliest.
        min_p: Least probability relative to the likeliest token's; 0: all; 1: only the likeliest.
        temperature: Divides the logits before probabilities are computed.
        max_rows: Maximum rows per block; changes memory and speed, never values.

    Returns:
        fp32 [M], in units of the given logits, before the temperature.
    """
    check_rows(logits_Mv)
    check_temperature(temperature)
    top_p = 1.0 if top_p is None else top_p
    if not top_p >= 0:
        raise ValueError(f"top_p is {top_p}, but must be a probability; 1 keeps every token")
    if not 0 <= min_p <= 1:
        raise ValueError(
            f"min_p is {min_p}, but must be a probability relative to the likeliest token; 0 "
            "keeps every token"
        )
    if min_p > 0:
        maximum_M1 = all_reduce(_row_maximum(logits_Mv, max_rows), shard.group, dist.ReduceOp.MAX)
        floor_M = maximum_M1[:, 0] + temperature * math.log(min_p)
        if (top_k is None or top_k <= 0) and top_p >= 1.0:
            return floor_M
        left_Mv = logits_Mv.masked_fill(logits_Mv < floor_M[:, None], -math.inf)
        others = support_floor(
            left_Mv, shard, top_k=top_k, top_p=top_p, temperature=temperature, max_rows=max_rows
        )
        return torch.maximum(floor_M, others)
    if (top_k is None or top_k <= 0) and top_p >= 1.0:
        return logits_Mv.new_full(logits_Mv.shape[:1], -math.inf, dtype=torch.float32)
    if shard.group is None:
        return _whole_floor(logits_Mv, top_k or 0, top_p, temperature, max_rows)
    return _SupportSearch(logits_Mv, shard, top_p, temperature, max_rows).find_threshold(top_k or 0)


@register_kernel(
    "(Tensor logits, int top_k, float top_p, float temperature, int? max_rows) -> Tensor",
    lambda logits, *_: logits.new_empty(logits.shape[:1], dtype=torch.float32),
    fused="support",
)
def _whole_floor(
    logits: Tensor, top_k: int, top_p: float, temperature: float, max_rows: int | None
) -> Tensor:
    """The threshold if one process holds the vocabulary; `top_k` below 1 keeps all."""
    return _SupportSearch(logits, WHOLE, top_p, temperature, max_rows).find_threshold(top_k)


@dataclass(frozen=True)
class _SupportSearch:
    """The arguments of `support_floor`."""

    logits: Tensor
    shard: Shard
    top_p: float
    temperature: float
    max_rows: int | None

    def find_threshold(self, top_k: int) -> Tensor:
        """The threshold, by the search that suits these arguments."""
        if top_k > 0:
            return self.within_top_k(top_k)
        if self.shard.group is None and self.logits.shape[1] <= _FEW:
            return self.nucleus_threshold(self.logits.float().sort(descending=True).values)
        return self.within_vocabulary()

    def within_top_k(self, k: int) -> Tensor:
        """The threshold of top-k, and of top-p after it, with one all-gather."""
        group = self.shard.group
        k = k if group else min(k, self.logits.shape[1])
        value_Mk = local_topk(self.logits, k, self.max_rows)[0]
        value_Mk = F.pad(value_Mk, (0, k - value_Mk.shape[1]), value=-math.inf)
        if self.top_p >= 1.0:
            return _merge_best(all_gather(value_Mk, group))[:, -1]
        equal_M1 = _count_equal(self.logits, value_Mk[:, -1:], self.max_rows)
        value_CMk, equal_CM1 = all_gather(torch.cat([value_Mk, equal_M1], 1), group).split(
            [k, 1], -1
        )
        best_Mk = _merge_best(value_CMk)
        last_M1 = best_Mk[:, -1:]
        # A rank whose own k-th largest is below the global k-th has all logits equal to the latter
        # among its k.
        among_CM1 = (value_CMk == last_M1).sum(-1, keepdim=True)
        equal_M1 = torch.where(value_CMk[..., -1:] == last_M1, equal_CM1, among_CM1).sum(0)
        return self.nucleus_threshold(best_Mk, equal_M1 - (best_Mk == last_M1).sum(1, keepdim=True))

    def nucleus_threshold(self, best_Mk: Tensor, further_M1: Tensor | float = 0.0) -> Tensor:
        """The threshold of top-p among the k largest logits, descending.

        `further_M1` more logits equal the last.
        """
        weight_Mk = ((best_Mk - best_Mk[:, :1]).double() / self.temperature).exp()
        total_M1 = weight_Mk.sum(1, keepdim=True) + further_M1 * weight_Mk[:, -1:]
        before_Mk = weight_Mk.cumsum(1) - weight_Mk
        kept_M1 = (before_Mk < self.top_p * total_M1).sum(1, keepdim=True).clamp(min=1)
        return best_Mk.gather(1, kept_M1 - 1)[:, 0]

    def within_vocabulary(self) -> Tensor:
        """The threshold of top-p over the full vocabulary: three base-256 digits, highest first.

        A token's distance from the row's maximum, in powers of 2, becomes a number of 24 bits, 0 at
        the maximum. Each pass sums probabilities by the next digit, over the tokens that have the
        row's earlier digits; the row's next digit is the one in which the sum from the maximum on
        reaches p. The last pass finds the smallest logit there.
        """
        group = self.shard.group
        # A token is kept only if its probability is at least (1 − p)/V.
        reach = _VOCABULARY_BITS - math.log2(1.0 - self.top_p)
        if group is None and self.logits.device.type == "cpu":
            return nucleus_floor(self.logits, self.top_p, self.temperature, reach, self.max_rows)
        maximum_M1 = all_reduce(_row_maximum(self.logits, self.max_rows), group, dist.ReduceOp.MAX)
        prefix_M1 = torch.zeros_like(maximum_M1)
        for digits in range(1, DIGITS + 1):
            mass_MD = _digit_mass(
                self.logits,
                maximum_M1,
                BASE * prefix_M1,
                reach,
                self.temperature,
                digits,
                self.max_rows,
            )
            mass_MD = all_reduce(mass_MD, group)
            before_MD = mass_MD.cumsum(1)[:, :BASE]
            goal_M1 = (self.top_p * mass_MD.sum(1, keepdim=True).double()).long()
            digit_M1 = (before_MD < goal_M1).sum(1, keepdim=True).clamp(min=1) - 1
            prefix_M1 = BASE * prefix_M1 + digit_M1
        floor_M1 = _least_kept(
            self.logits, maximum_M1, prefix_M1, reach, self.temperature, self.max_rows
        )
        return all_reduce(floor_M1, group, dist.ReduceOp.MIN)[:, 0]


def _one_per_row(logits: Tensor, *_: object) -> Tensor:
    return logits.new_empty((logits.shape[0], 1), dtype=torch.float32)


@register_kernel("(Tensor logits, Tensor value, int? max_rows) -> Tensor", _one_per_row)
def _count_equal(logits: Tensor, value: Tensor, max_rows: int | None) -> Tensor:
    """Counts each row's logits that equal its value [M, 1]."""
    count_M1 = torch.zeros_like(value)
    for rows in _split_row_blocks(logits, 1, max_rows):
        z = logits[rows]
        same = torch.eq(z, value[rows], out=torch.empty_like(z, dtype=torch.float32))
        count_M1[rows] = same.sum(1, keepdim=True)
    return count_M1


@register_kernel("(Tensor logits, int? max_rows) -> Tensor", _one_per_row)
def _row_maximum(logits: Tensor, max_rows: int | None) -> Tensor:
    maximum_M1 = torch.full((len(logits), 1), -math.inf, dtype=torch.float32, device=logits.device)
    for rows in _split_row_blocks(logits, 1, max_rows):
        maximum_M1[rows] = logits[rows].amax(1, keepdim=True)
    return maximum_M1


@register_kernel(
    "(Tensor logits, Tensor maximum, Tensor prefix, float reach, float temperature, int digits, "
    "int? max_rows) -> Tensor",
    lambda logits, *_: logits.new_empty((logits.shape[0], BASE + 2), dtype=torch.int64),
)
def _digit_mass(
    logits: Tensor,
    maximum: Tensor,
    prefix: Tensor,
    reach: float,
    temperature: float,
    digits: int,
    max_rows: int | None,
) -> Tensor:
    """Sums of `masses` by the next digit, int64 [M, 1 + BASE + 1].

    The first column sums tokens with a smaller prefix, the last column those with a larger one.
    """
    mass_MD = torch.zeros(len(logits), BASE + 2, dtype=torch.int64, device=logits.device)
    for rows in _split_row_blocks(logits, _COPIES, max_rows):
        power = compute_powers(logits[rows], maximum[rows], temperature)
        digit = (power * -(BASE**digits / reach)).floor_().sub_(prefix[rows] - 1.0)
        # a NaN may spoil its row, but must not index elsewhere
        digit.nan_to_num_(0.0).clamp_(0.0, BASE + 1.0)
        mass_MD[rows].scatter_add_(1, digit.long(), compute_masses(power).long())
    return mass_MD


@register_kernel(
    "(Tensor logits, Tensor maximum, Tensor prefix, float reach, float temperature, int? "
    "max_rows) -> Tensor",
    _one_per_row,
)
def _least_kept(
    logits: Tensor,
    maximum: Tensor,
    prefix: Tensor,
    reach: float,
    temperature: float,
    max_rows: int | None,
) -> Tensor:
    """The smallest logit of each row whose number does not exceed the prefix [M, 1]."""
    floor_M1 = torch.full((len(logits), 1), math.inf, dtype=torch.float32, device=logits.device)
    for rows in _split_row_blocks(logits, 2, max_rows):
        power = compute_powers(logits[rows], maximum[rows], temperature)
        below = power.mul_(-(BASE**DIGITS) / reach).floor_().gt_(prefix[rows])
        least = below.sub_(0.5).mul_(math.inf)  # −∞ for kept logits, ∞ for others
        floor_M1[rows] = torch.maximum(logits[rows], least, out=least).amin(1, keepdim=True)
    return floor_M1


def _split_row_blocks(logits: Tensor, arrays: int, max_rows: int | None) -> Iterator[slice]:
    """Blocks of rows for a pass that uses the memory of `arrays` fp32 copies of its logits."""
    rows, columns = logits.shape
    return split_rows(rows, arrays * columns, logits.device, max_rows)


def _merge_best(value_CMk: Tensor) -> Tensor:
    """The k largest of the ranks' k largest, descending. Returns [M, k]."""
    if len(value_CMk) == 1:
        return value_CMk[0]
    return value_CMk.movedim(0, 1).flatten(1).topk(value_CMk.shape[-1]).values
