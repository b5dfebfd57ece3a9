"""The largest logits of each row over a sharded vocabulary; no gradient.

Letters: M rows, v this rank's columns, C ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.collectives import all_gather
from lockstep_logprobs.kernel import register_kernel
from lockstep_logprobs.shard import WHOLE, Shard, split_rows

_GROUP = 16
_GROUPS_PER_K = 8
"""Rows with at most this many groups per wanted logit are searched without groups."""

_ID_BITS = 32
_NO_KEY = torch.iinfo(torch.int64).min
_MERGE_ARRAYS = 8
"""Memory of a merge in fp32 arrays: four int64 arrays of the keys' shape."""


@torch.no_grad()
def vocab_topk(
    logits_Mv: Tensor, k: int, shard: Shard = WHOLE, *, max_rows: int | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest logits and their tokens, by one all-gather of every rank's k largest.

    Which of several logits equal to the k-th are taken is undefined. A rank with fewer than k
    columns counts the gathered logits, which syncs with its device; no other case syncs.

    Args:
        logits_Mv: Logits of this rank's columns.
        k: Number of logits; all of them if the vocabulary has fewer.
        shard: This rank's columns; by default one process holds all.
        max_rows: Maximum rows per block; changes memory and speed, never values.

    Returns:
        Logits, fp32 [M, k], largest first, and their tokens, int64 [M, k]; the same on all ranks.
    """
    if shard.group is None:
        value_Mk, column_Mk = local_topk(logits_Mv, k, max_rows)
        return value_Mk, column_Mk.add_(shard.start)
    own_Mk = _topk_keys(logits_Mv, min(k, logits_Mv.shape[1]), shard.start, max_rows)
    if k > own_Mk.shape[1]:
        own_Mk = F.pad(own_Mk, (0, k - own_Mk.shape[1]), value=_NO_KEY)
    key_CMk = all_gather(own_Mk, shard.group)
    del own_Mk
    if k > logits_Mv.shape[1] and len(logits_Mv):
        k = min(k, int((key_CMk[:, :1] > _NO_KEY).sum()))
    return _merge_keys(key_CMk, k)


@register_kernel(
    "(Tensor logits, int k, int? max_rows) -> (Tensor, Tensor)",
    lambda logits, k, max_rows: (
        logits.new_empty((logits.shape[0], min(k, logits.shape[1])), dtype=torch.float32),
        logits.new_empty((logits.shape[0], min(k, logits.shape[1])), dtype=torch.int64),
    ),
)
def local_topk(logits: Tensor, k: int, max_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """This rank's min(k, v) largest logits, fp32, descending, and their columns, int64.

    By blocks of rows.
    """
    rows, columns = logits.shape
    value_Mk = torch.empty(rows, min(k, columns), dtype=torch.float32, device=logits.device)
    column_Mk = torch.empty(value_Mk.shape, dtype=torch.int64, device=logits.device)
    for block in split_rows(rows, columns, logits.device, max_rows):
        value_Mk[block], column_Mk[block] = _find_largest(logits[block].float(), value_Mk.shape[1])
    return value_Mk, column_Mk


@register_kernel(
    "(Tensor logits, int k, int start, int? max_rows) -> Tensor",
    lambda logits, k, start, max_rows: logits.new_empty((logits.shape[0], k), dtype=torch.int64),
)
def _topk_keys(logits: Tensor, k: int, start: int, max_rows: int | None) -> Tensor:
    """`local_topk` as `_pack_keys`.

    Values and tokens travel together and are never both in memory.
    """
    key_Mk = torch.empty(len(logits), k, dtype=torch.int64, device=logits.device)
    for block in split_rows(len(logits), logits.shape[1], logits.device, max_rows):
        value, column = _find_largest(logits[block], k)
        key_Mk[block] = _pack_keys(value.float(), column + start)
    return key_Mk


@register_kernel(
    "(Tensor keys, int k) -> (Tensor, Tensor)",
    lambda keys, k: (
        keys.new_empty((keys.shape[1], k), dtype=torch.float32),
        keys.new_empty((keys.shape[1], k), dtype=torch.int64),
    ),
)
def _merge_keys(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of all ranks' keys [C, M, k'], as values and tokens [M, k]; in blocks."""
    value_Mk = torch.empty(keys.shape[1], k, dtype=torch.float32, device=keys.device)
    token_Mk = torch.empty(keys.shape[1], k, dtype=torch.int64, device=keys.device)
    for block in split_rows(
        keys.shape[1], _MERGE_ARRAYS * keys.shape[0] * keys.shape[2], keys.device
    ):
        best = keys[:, block].movedim(0, 1).flatten(1).topk(k).values
        # the inverse of `_pack_keys`
        ordered = (best >> _ID_BITS).int()
        bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
        value_Mk[block] = bits.view(torch.float32)
        token_Mk[block] = ~best & 0xFFFFFFFF
    return value_Mk, token_Mk


def _find_largest(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk` by groups, since it is slow on wide rows.

    The k largest are in the k groups with the largest maxima. The columns of a group are far apart,
    so that the maxima of groups vectorize.
    """
    groups = z.shape[1] // _GROUP
    if groups <= _GROUPS_PER_K * k:
        return z.topk(k)
    grouped = _GROUP * groups
    best = _find_largest(z[:, :grouped].unflatten(1, (_GROUP, groups)).amax(1), k)[1]
    member = torch.arange(0, grouped, groups, device=z.device)[:, None]
    rest = torch.arange(grouped, z.shape[1], device=z.device)
    column = torch.cat([(best[:, None] + member).flatten(1), rest.expand(len(z), -1)], 1)
    value, chosen = z.gather(1, column).topk(k)
    return value, column.gather(1, chosen)


def _pack_keys(value: Tensor, token: Tensor) -> Tensor:
    """Packs fp32 values and token ids into integers, ordered by value, then by token."""
    bits = value.view(torch.int32)
    # among negative numbers, the larger has the smaller magnitude
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << _ID_BITS) | ~token & 0xFFFFFFFF
