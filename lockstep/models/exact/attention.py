"""Batch-invariant causal attention on CPUs.

A row depends neither on its neighbors nor on how many keys a cache holds. A query's softmax runs
over all its scores, and is multiplied with the values one block of keys at a time; the products are
added in the order of the blocks. So a query has the same sums whether it is alone with a cache
(decoding) or among others (prefill, scoring, training): a masked key adds an exact 0, also to the
16 partial sums of softmax. All is in fp32, which holds products of bf16 numbers exactly.

Letters: B rows times heads of keys, G queries that share a head of keys, T queries, W keys, D size
of a head.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.linear import add_rows, pad_rows
from lockstep.models.kernels import FUSED, AttentionKernel
from lockstep_logprobs.kernel import runs_fused

KEYS = 16
"""Keys are padded to a multiple of this.

A product with fewer keys uses another kernel, and softmax has as many partial sums.
"""

QUERIES = 4
"""Queries of a product are padded to a multiple of this: fewer use another kernel.

Unlike rows of a linear map, they are not divided among threads, which compute whole products.
"""

BLOCK = 128
"""Keys in one product with values, and queries per block; more keys would change the sum order."""


@dataclass(frozen=True)
class BlockwiseKernel(AttentionKernel):
    """Attention with the same summation order at any number of queries and keys.

    Attributes:
        softcap: Scores become cap · tanh(score / cap); None: no cap.
        sinks: A score for each head that takes a share of the probability and gives no value [H];
            None: no sinks.
    """

    softcap: float | None = None
    sinks: Tensor | None = None

    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if self._is_fused(query):
            with _no_autocast(query.device):
                return _TritonAttention.apply(
                    query.float(), key.float(), value.float(), scaling, window
                ).flatten(0, 1)
        heads = key.shape[1]
        width = query.shape[2]
        with _no_autocast(query.device):
            missing = -key.shape[2] % KEYS
            query, key, value = (add_rows(x.float(), missing) for x in (query, key, value))
            q, groups = _fold_queries(query * scaling, heads)
            how = window, self.softcap, groups
            out = _CausalAttention.apply(
                q, key.flatten(0, 1), value.flatten(0, 1), self._repeat_sinks(query, heads), *how
            )
            return _unfold_output(out, heads, groups)[:, :width].flatten(0, 1)

    def build_mask(self, seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)[:, None]

    def attend_newest(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        if self._is_fused(query):
            from lockstep.models.exact.fused.attention import run_attention

            q = query.float()[:, :, None]
            k = key.float()
            v = value.float()
            return run_attention(q, k, v, mask[:, 0].contiguous(), scaling, k.shape[2])[:, 0]
        heads = key.shape[1]
        queries = query.shape[1]
        with _no_autocast(query.device):
            q = pad_rows(
                (query.float() * scaling).reshape(-1, queries // heads, query.shape[2]), QUERIES
            )
            k = key.float().flatten(0, 1)
            v = value.float().flatten(0, 1)
            sinks = self._repeat_sinks(query, heads)
            out = _attend_block(
                q, k, v, mask, self.softcap, None if sinks is None else pad_rows(sinks, QUERIES)
            )
            return out[:, : queries // heads].reshape(query.shape)

    def _is_fused(self, query: Tensor) -> bool:
        """True if Triton's kernel can compute it: no cap and no sinks."""
        return self.softcap is None and self.sinks is None and runs_fused(query)

    def _repeat_sinks(self, query: Tensor, heads: int) -> Tensor | None:
        """The sinks for the queries of one token [B, G, 1]."""
        if self.sinks is None:
            return None
        return self.sinks.float().view(heads, -1, 1).repeat(query.shape[0], 1, 1)


def _no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast; does nothing if autocast is off, which costs less."""
    on = torch.is_autocast_enabled(device.type)
    if on:
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _fold_queries(query: Tensor, heads: int) -> tuple[Tensor, int]:
    """Reshapes queries [rows, H, T, D] to [B, T · G, D]; returns also G."""
    groups = query.shape[1] // heads
    return query.unflatten(1, (heads, groups)).transpose(2, 3).flatten(2, 3).flatten(0, 1), groups


def _unfold_output(out: Tensor, heads: int, groups: int) -> Tensor:
    """Reshapes [B, T · G, D] to [rows, T, H, D]."""
    return out.unflatten(0, (-1, heads)).unflatten(2, (-1, groups)).transpose(1, 2).flatten(2, 3)


def _attend_block(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Attention of some queries [B, M, D] to keys [B, W, D].

    Args:
        q: Queries, already scaled; `_compute_weights` and `_mix_values` pad them only inside their
            products.
        k: Keys, starting at a block.
        v: Values.
        mask: 0 if a query sees a key, else −∞: [M, W] for all rows, or [rows, 1, W] for all heads
            of a row.
        softcap: As in `BlockwiseKernel`.
        sinks: One for each query, broadcastable to [B, M, 1].
    """
    return _mix_values(_compute_weights(q, k, mask, softcap, sinks)[0], v)


def _mix_values(weight: Tensor, v: Tensor) -> Tensor:
    """Sums values weighted by [B, M, W]."""
    filled = pad_rows(weight, QUERIES)
    out = torch.bmm(filled[:, :, :BLOCK], v[:, :BLOCK])
    for start in range(BLOCK, v.shape[1], BLOCK):
        keys = slice(start, start + BLOCK)
        out += torch.bmm(filled[:, :, keys], v[:, keys])
    return out[:, : weight.shape[1]]


def _compute_weights(
    q: Tensor, k: Tensor, mask: Tensor, softcap: float | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Probabilities of keys [B, M, W] and of sinks [B, M, 1]; and tanh(score / cap) if capped."""
    score = torch.bmm(pad_rows(q, QUERIES), k.transpose(1, 2))[:, : q.shape[1]]
    bent = None
    if softcap is not None:
        bent = score.div_(softcap).tanh_()
        score = bent * softcap
    (score if mask.dim() == 2 else score.unflatten(0, (len(mask), -1))).add_(
        mask if mask.dim() == 2 else mask[:, None]
    )
    if sinks is None:
        return score.softmax(-1), None, bent
    before = F.pad(sinks.expand(*score.shape[:-1], 1), (0, KEYS - 1), value=-torch.inf)
    weight = torch.cat([before, score], -1).softmax(-1)
    return weight[:, :, KEYS:], weight[:, :, :1], bent


@lru_cache(maxsize=256)
def _build_causal_mask(
    start: int, stop: int, first: int, groups: int, window: int | None, device: torch.device
) -> Tensor:
    """Mask of keys [first, stop) for queries [start, stop), fp32 [(stop − start) · G, W]."""
    distance = torch.arange(start, stop, device=device)[:, None] - torch.arange(
        first, stop, device=device
    )
    if window is None:
        hidden = distance < 0
    else:
        hidden = (distance < 0) | (distance >= window)
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(groups, 0)


def _list_query_blocks(
    q: Tensor, k: Tensor, groups: int, window: int | None
) -> list[tuple[int, int, int]]:
    """Blocks of queries as (start, stop, first key).

    The first key begins the first block of keys that they see. Queries are those of the last
    tokens; blocks stop at a multiple of `KEYS`.
    """
    width = k.shape[1]
    begin = width - q.shape[1] // groups
    blocks = list[tuple[int, int, int]]()
    for edge in range(begin // KEYS * KEYS, width, BLOCK):
        start = max(begin, edge)
        first = 0 if window is None else max(0, start - window + 1) // BLOCK * BLOCK
        blocks.append((start, min(edge + BLOCK, width), first))
    return blocks


def _piece_weights(
    q: Tensor,
    k: Tensor,
    sinks: Tensor | None,
    piece: tuple[int, int, int],
    window: int | None,
    softcap: float | None,
    groups: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`_compute_weights` for the queries of one of `_list_query_blocks`."""
    start, stop, first = piece
    own = None if sinks is None else sinks.repeat(1, stop - start, 1)
    return _compute_weights(
        q, k, _build_causal_mask(start, stop, first, groups, window, q.device), softcap, own
    )


class _TritonAttention(torch.autograd.Function):
    """Causal attention by Triton's kernel [rows, T, heads, size]; PyTorch computes the gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        from lockstep.models.exact.fused.attention import run_attention

        ctx.save_for_backward(query, key, value)
        ctx.how = scaling, window
        return run_attention(
            query, key, value, None, scaling, key.shape[2] if window is None else window
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        given = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = FUSED.attend_causally(*given, *ctx.how)
        return *torch.autograd.grad(out, given, grad_outputs[0].flatten(0, 1)), None, None


class _CausalAttention(torch.autograd.Function):
    """`_attend_block` by blocks of queries, each without the keys after it.

    Backward recomputes the weights, unless there is only one block; its weights, at most 128 per
    query, are kept.
    """

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
        parts = list[Tensor]()
        kept = tuple[Tensor | None, ...]()
        how = (window, softcap, groups)
        before = k.shape[1] * groups - q.shape[1]
        for start, stop, first in _list_query_blocks(q, k, groups, window):
            queries = slice(start * groups - before, stop * groups - before)
            keys = slice(first, stop)
            kept = found = _piece_weights(
                q[:, queries], k[:, keys], sinks, (start, stop, first), *how
            )
            parts.append(_mix_values(found[0], v[:, keys]))
        out = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        ctx.save_for_backward(q, k, v, sinks, out, *(kept if len(parts) == 1 else ()))
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        (window, _, groups) = ctx.how
        q, k, v, sinks, out, *kept = ctx.saved_tensors
        dq = torch.empty_like(q)
        dk = torch.zeros_like(k)
        dv = torch.zeros_like(v)
        dsinks = None if sinks is None else torch.zeros_like(sinks)
        offset = (gradient * out).sum(-1, keepdim=True)
        before = k.shape[1] * groups - q.shape[1]
        for start, stop, first in _list_query_blocks(q, k, groups, window):
            queries = slice(start * groups - before, stop * groups - before)
            keys = slice(first, stop)
            weight, share, bent = kept or _piece_weights(
                q[:, queries], k[:, keys], sinks, (start, stop, first), *ctx.how
            )
            dv[:, keys].baddbmm_(weight.transpose(1, 2), gradient[:, queries])
            slope = (
                torch.bmm(gradient[:, queries], v[:, keys].transpose(1, 2))
                .sub_(offset[:, queries])
                .mul_(weight)
            )
            if bent is not None:
                slope.mul_(1.0 - bent.square())
            torch.bmm(slope, k[:, keys], out=dq[:, queries])
            dk[:, keys].baddbmm_(slope.transpose(1, 2), q[:, queries])
            if dsinks is not None and share is not None:
                dsinks -= (share * offset[:, queries]).unflatten(1, (-1, groups)).sum(1)
        return dq, dk, dv, dsinks, None, None, None
