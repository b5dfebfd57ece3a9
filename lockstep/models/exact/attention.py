"""Causal attention whose rows do not depend on their neighbors, nor on how many keys a cache holds, on CPUs.

Each query's scores are joined and taken off their maximum; the exponentials are multiplied, block of keys by block of
keys, with [values, 1], and these products are added in the order of the blocks. So numerator and denominator of a query
are the same sums whether it stands alone before a cache (decoding) or among others (prefill, scoring, training): a
hidden key adds an exact 0. All is in fp32, which holds products of bf16 numbers exactly.

Letters: B rows times heads of keys, G queries that share a head of keys, T queries, W keys, D size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.linear import ROWS

KEYS = 16
"""Keys come in multiples of so many; fewer in a product take another kernel."""

BLOCK = 128
"""Keys of one product with values, and queries that are computed at once; more keys are summed in another order."""


@dataclass(frozen=True)
class Blockwise:
    """Implements `models.attention.Kernel`.

    Attributes:
        softcap: Scores become cap · tanh(score / cap); None: they stay.
        sinks: A score for each head that takes a share of the probability and gives no value [H]; None: there is none.
    """

    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def multiple(self) -> int:
        return KEYS

    def values(self, value: Tensor) -> Tensor:
        """[values, 1]: with as many ones as a product has columns at least."""
        return torch.cat([value.float(), value.new_ones(*value.shape[:-1], KEYS, dtype=torch.float32)], -1)

    def causal(self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        heads, width = key.shape[1], query.shape[2]
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (F.pad(x.float(), (0, 0, 0, -width % KEYS)) for x in (query, key, value))
            q, groups = _fold(query * scaling, heads)
            how = window, self.softcap, groups
            out = _Causal.apply(q, key.flatten(0, 1), value.flatten(0, 1), self._sinks(query, heads), *how)
            return _unfold(out, heads, groups)[:, :width].flatten(0, 1)

    def newest(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scaling: float) -> Tensor:
        heads = key.shape[1]
        with torch.autocast(query.device.type, enabled=False):
            q, groups = _fold(query.float() * scaling, heads)
            hidden = ~seen.expand(-1, heads, -1, -1).flatten(0, 1)
            sinks = self._sinks(query, heads)
            q = F.pad(q, (0, 0, 0, -groups % ROWS))
            if sinks is not None:
                sinks = F.pad(sinks, (0, 0, 0, -groups % ROWS))
            out, _ = _attend(q, key.float().flatten(0, 1), value.flatten(0, 1), hidden, self.softcap, sinks)
            return _unfold(out[:, :groups], heads, groups)

    def _sinks(self, query: Tensor, heads: int) -> Tensor | None:
        """The sinks of the queries of one token [B, G, 1]."""
        if self.sinks is None:
            return None
        return self.sinks.float().view(heads, -1, 1).repeat(query.shape[0], 1, 1)


def _fold(query: Tensor, heads: int) -> tuple[Tensor, int]:
    """Queries [rows, H, T, D] as [B, T · G, D], and G."""
    groups = query.shape[1] // heads
    return query.unflatten(1, (heads, groups)).transpose(2, 3).flatten(2, 3).flatten(0, 1), groups


def _unfold(out: Tensor, heads: int, groups: int) -> Tensor:
    """[B, T · G, D] as [rows, T, H, D]."""
    return out.unflatten(0, (-1, heads)).unflatten(2, (-1, groups)).transpose(1, 2).flatten(2, 3)


def _attend(
    q: Tensor, k: Tensor, values: Tensor, hidden: Tensor, softcap: float | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of some queries [B, M, D] to keys [B, W, D]; the one definition of it.

    Args:
        q: Queries, already scaled.
        k: Keys, of which the first is the first of a block.
        values: [values, 1].
        hidden: Keys that a query does not see, bool, of a shape that goes with [B, M, W].
        softcap: As in `Blockwise`.
        sinks: One for each query; of a shape that goes with [B, M, 1].

    Returns:
        fp32 [B, M, D], and log Σ exp score [B, M, 1].
    """
    score, _ = _scores(q, k, hidden, softcap)
    maximum = score.amax(-1, keepdim=True)
    maximum = maximum if sinks is None else torch.maximum(maximum, sinks)
    weight = score.sub_(maximum).exp_()
    out = torch.bmm(weight[:, :, :BLOCK], values[:, :BLOCK])
    for start in range(BLOCK, k.shape[1], BLOCK):
        keys = slice(start, start + BLOCK)
        out += torch.bmm(weight[:, :, keys], values[:, keys])
    total = out[:, :, -1:]
    total = total if sinks is None else total + (sinks - maximum).exp()
    return out[:, :, :-KEYS] / total, maximum + total.log()


def _scores(q: Tensor, k: Tensor, hidden: Tensor, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Scores [B, M, W], −∞ where hidden; and tanh(score / cap), if there is a cap."""
    score, bent = torch.bmm(q, k.transpose(1, 2)), None
    if softcap is not None:
        bent = score.div_(softcap).tanh_()
        score = bent * softcap
    return score.masked_fill_(hidden, -torch.inf), bent


@lru_cache(maxsize=256)
def _hidden(start: int, stop: int, first: int, groups: int, window: int | None, device: torch.device) -> Tensor:
    """Keys from `first` to `stop` that the queries from `start` to `stop` do not see, bool [(stop − start) · G, W]."""
    distance = torch.arange(start, stop, device=device)[:, None] - torch.arange(first, stop, device=device)
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return hidden.repeat_interleave(groups, 0)


def _pieces(width: int, window: int | None) -> list[tuple[int, int, int]]:
    """Blocks of queries, start and stop, and the first key of the first block of keys that they see."""
    starts = range(0, width, BLOCK)
    firsts = [0 if window is None else max(0, start - window + 1) // BLOCK * BLOCK for start in starts]
    return [(start, min(start + BLOCK, width), first) for start, first in zip(starts, firsts, strict=True)]


class _Causal(torch.autograd.Function):
    """`_attend` by blocks of queries, without the keys behind them; backward computes the weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        window: int | None,
        softcap: float | None,
        groups: int,
    ) -> Tensor:
        values = torch.cat([v, v.new_ones(*v.shape[:-1], KEYS)], -1)
        parts: list[Tensor] = []
        sums: list[Tensor] = []
        for start, stop, first in _pieces(k.shape[1], window):
            own = None if sinks is None else sinks.repeat(1, stop - start, 1)
            hidden = _hidden(start, stop, first, groups, window, q.device)
            queries, keys = slice(start * groups, stop * groups), slice(first, stop)
            out, log_sum = _attend(q[:, queries], k[:, keys], values[:, keys], hidden, softcap, own)
            parts.append(out)
            sums.append(log_sum)
        out = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        ctx.save_for_backward(q, k, v, sinks, out, *sums)
        ctx.how = window, softcap, groups
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (gradient,), (q, k, v, sinks, out, *sums), (window, softcap, groups) = grad_outputs, ctx.saved_tensors, ctx.how
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        offset = (gradient * out).sum(-1, keepdim=True)
        for (start, stop, first), log_sum in zip(_pieces(k.shape[1], window), sums, strict=True):
            queries, keys = slice(start * groups, stop * groups), slice(first, stop)
            hidden = _hidden(start, stop, first, groups, window, q.device)
            score, bent = _scores(q[:, queries], k[:, keys], hidden, softcap)
            weight = score.sub_(log_sum).exp_()
            dv[:, keys].baddbmm_(weight.transpose(1, 2), gradient[:, queries])
            slope = torch.bmm(gradient[:, queries], v[:, keys].transpose(1, 2)).sub_(offset[:, queries]).mul_(weight)
            if bent is not None:
                slope.mul_(1.0 - bent.square())
            dq[:, queries] = torch.bmm(slope, k[:, keys])
            dk[:, keys].baddbmm_(slope.transpose(1, 2), q[:, queries])
        dsinks = None
        if sinks is not None:
            share = (sinks.repeat(1, k.shape[1], 1) - torch.cat(sums, 1)).exp()
            dsinks = -(share * offset).unflatten(1, (-1, groups)).sum(1)
        return dq, dk, dv, dsinks, None, None, None
