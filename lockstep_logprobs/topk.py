"""The largest logits of each row, over a vocabulary in shards; without gradient.

Letters: M rows, v this rank's columns, C ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.collectives import all_gather
from lockstep_logprobs.shard import Shard, blocks

_GROUP = 16
_GROUPS_PER_K = 8
"""Rows with no more groups than this, per number wanted, are searched without groups."""

_ID_BITS = 32
_NO_KEY = torch.iinfo(torch.int64).min


@torch.no_grad()
def vocab_topk(
    logits_Mv: Tensor, k: int, shard: Shard | None = None, *, max_rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest logits and their tokens, by one all-gather of every rank's own k.

    Which of several logits that equal the k-th are taken is not defined. A rank with fewer than k columns reads off the
    others' answers how many columns there are in all, and waits for its device: no other case and no other rank does.

    Args:
        logits_Mv: Logits of this rank's columns.
        k: How many; all of them where the vocabulary has fewer.
        shard: Which columns these are; None: one process holds all.
        max_rows: A bound on the rows of a block; it changes memory and speed, never values.

    Returns:
        Logits, fp32 [M, k], largest first, and their tokens, int64 [M, k]; the same on all ranks.
    """
    shard = shard or Shard()
    value_Mk, column_Mk = local_topk(logits_Mv, k, max_rows)
    if shard.group is None:
        return value_Mk, column_Mk + shard.start
    own = F.pad(_keys(value_Mk, column_Mk + shard.start), (0, k - value_Mk.shape[1]), value=_NO_KEY)
    key = all_gather(own, shard.group).movedim(0, 1).flatten(1)
    if k > logits_Mv.shape[1] and len(logits_Mv):
        k = min(k, int((key[:1] > _NO_KEY).sum()))
    return _values_and_tokens(key.topk(k).values)


def local_topk(logits_Mv: Tensor, k: int, max_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """This rank's min(k, v) largest logits, fp32, largest first, and their columns, int64; by blocks of rows."""
    rows, columns = logits_Mv.shape
    value_Mk = torch.empty(rows, min(k, columns), dtype=torch.float32, device=logits_Mv.device)
    column_Mk = torch.empty(value_Mk.shape, dtype=torch.int64, device=logits_Mv.device)
    for block in blocks(rows, columns, logits_Mv.device, max_rows):
        value_Mk[block], column_Mk[block] = _largest_of(logits_Mv[block], value_Mk.shape[1])
    return value_Mk, column_Mk


def _largest_of(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk`, which is slow on wide rows, of a few: the k largest lie in the k groups with the largest maxima.

    A group's columns lie far apart, so that the maxima are taken of whole vectors.
    """
    groups = z.shape[1] // _GROUP
    if groups <= _GROUPS_PER_K * k:
        return z.topk(k)
    grouped = _GROUP * groups
    best = _largest_of(z[:, :grouped].unflatten(1, (_GROUP, groups)).amax(1), k)[1]
    member = torch.arange(0, grouped, groups, device=z.device)[:, None]
    rest = torch.arange(grouped, z.shape[1], device=z.device)
    column = torch.cat([(best[:, None] + member).flatten(1), rest.expand(len(z), -1)], 1)
    value, chosen = z.gather(1, column).topk(k)
    return value, column.gather(1, chosen)


def _keys(value: Tensor, token: Tensor) -> Tensor:
    """fp32 values and token ids as integers that are ordered as the values are, and equal ones by token."""
    bits = value.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers, the larger has the smaller magnitude
    return (ordered.long() << _ID_BITS) | ~token & 0xFFFFFFFF


def _values_and_tokens(key: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `_keys`."""
    ordered = (key >> _ID_BITS).int()
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.view(torch.float32), ~key & 0xFFFFFFFF
