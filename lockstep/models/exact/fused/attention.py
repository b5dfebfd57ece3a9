"""Batch-invariant attention: one program reads all blocks of keys in order for its queries.

A masked key adds an exact 0 and changes no maximum, so a query has the same bits alone with a cache
and among others.
"""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lockstep_logprobs.fused.lanes import finite_base, launch_kernel

_ROWS = 32
_KEYS = 32
"""Queries per program, padded to this number, and keys per block."""


def run_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, window: int
) -> Tensor:
    """Attention of each row's last tokens to all earlier tokens, or to those of a mask.

    Args:
        query: Queries [rows, heads, T, size] of the last of W tokens, fp32.
        key: Keys and values of all W tokens; may have fewer heads [rows, groups, W, size].
        mask: Added to scores of a single query [rows, W]: 0 or −∞; None: causal.
        scaling: Multiplies queries.
        window: Largest number of keys that a query sees, including its own.

    Returns:
        fp32 [rows, T, heads, size].
    """
    rows, heads, queries, size = query.shape
    groups = key.shape[1]
    keys = key.shape[2]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    out = query.new_empty(rows, queries, heads, size)
    if out.numel():
        strides = *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]
        sizes = heads, heads // groups, queries, keys, size, scaling, window
        programs = triton.cdiv(queries, _ROWS), rows * heads
        tiles = _ROWS, _KEYS, max(16, triton.next_power_of_2(size))
        launch_kernel(_attend_kernel, programs, q, k, v, mask, out, *sizes, *strides, *tiles)
    return out


@triton.jit
def _attend_kernel(
    query,
    key,
    value,
    mask,
    out,
    heads,
    shared,
    queries,
    keys,
    size,
    scaling,
    window,
    query_row,
    query_head,
    query_token,
    key_row,
    key_head,
    key_token,
    value_row,
    value_head,
    value_token,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    begin = tl.program_id(0) * ROWS
    t = (begin + tl.arange(0, ROWS)).to(tl.int64)
    d = tl.arange(0, SIZE)
    query += row * query_row + head * query_head
    key += row * key_row + head // shared * key_head
    value += row * value_row + head // shared * value_head
    here = (t < queries)[:, None] & (d < size)[None, :]
    q = tl.load(query + t[:, None] * query_token + d[None, :], mask=here, other=0.0) * scaling
    position = keys - queries + t
    first = 0
    last = keys
    if mask is None:
        first = tl.maximum(0, keys - queries + begin - window + 1) // KEYS * KEYS
        last = tl.minimum(keys, keys - queries + begin + ROWS)
    highest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, SIZE), tl.float32)
    for start in range(first, last, KEYS):
        c = (start + tl.arange(0, KEYS)).to(tl.int64)
        there = (c < keys)[:, None] & (d < size)[None, :]
        k = tl.load(key + c[:, None] * key_token + d[None, :], mask=there, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if mask is None:
            back = position[:, None] - c[None, :]
            seen = (back >= 0) & (back < window)
        else:
            shown = tl.load(mask + row * keys + c, mask=c < keys, other=-float("inf"))
            seen = (shown == 0.0)[None, :] & (t >= 0)[:, None]
        score = tl.where(seen & (c < keys)[None, :], score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        base = finite_base(higher)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(highest - base)
        total = shrink * total + tl.sum(weight, 1)
        v = tl.load(value + c[:, None] * value_token + d[None, :], mask=there, other=0.0)
        acc = tl.dot(weight, v, acc * shrink[:, None], input_precision="ieee")
        highest = higher
    place = ((row * queries + t) * heads + head)[:, None] * size + d[None, :]
    total = tl.where(total == 0.0, 1.0, total)  # padding rows of the tile
    tl.store(out + place, acc / total[:, None], mask=here)
