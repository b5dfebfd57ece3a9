"""The threshold of top-k and top-p, bit by bit: one program per row, no sort, no histogram.

fp32 numbers sort like their bits, once the bits of negative numbers are flipped. The threshold is
the largest number such that the logits at or above it weigh enough: for top-k each logit weighs 1
and k is enough; for top-p each weighs its probability and p is enough. Each pass over the row finds
two bits; the row is read from memory once and from the cache after that. All weights are integers,
so that no sum depends on its order.
"""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_logprobs.fused.lanes import finite_base, launch_kernel
from lockstep_logprobs.fused.rows import power_scale, with_adjacent_columns

_TILE = 2048
_NO_MASS = tl.constexpr(-44.0)
_ONE = tl.constexpr(2.0**40)
"""Probability of the likeliest token, as an integer; see `nucleus`."""


def whole_floor(
    logits: Tensor, top_k: int, top_p: float, temperature: float, max_rows: int | None
) -> Tensor:
    """`support._whole_floor`; `max_rows` is not needed."""
    rows, columns = logits.shape
    floor_M = logits.new_empty(rows, dtype=torch.float32)
    if rows:
        logits = with_adjacent_columns(logits)
        by_k = 0 < top_k < columns
        by_p = top_p < 1.0
        # a Python number would become fp32
        probability = torch.full((1,), top_p, dtype=torch.float64, device=logits.device)
        lowest_bit = 16 if logits.dtype == torch.bfloat16 else 0
        sizes = columns, logits.stride(0), top_k, power_scale(temperature)
        launch_kernel(
            _find_floor,
            (rows,),
            logits,
            floor_M,
            probability,
            *sizes,
            by_k,
            by_p,
            lowest_bit,
            _TILE,
        )
    return floor_M


@triton.jit
def _find_floor(
    logits,
    floor,
    probability,
    columns,
    stride,
    k,
    scale,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    LOWEST_BIT: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lowest = -float("inf")
    if TOP_K:
        lowest = _find_threshold(logits, columns, k, lowest, 0.0, scale, False, LOWEST_BIT, TILE)
    if TOP_P:
        highest = _find_maximum(logits, columns, TILE)
        base = finite_base(highest)
        total, _, _ = _weigh_from(logits, columns, 0, 0, 0, lowest, base, scale, True, TILE)
        enough = (tl.load(probability) * total.to(tl.float64)).to(tl.int64)
        enough = tl.maximum(enough, 1)  # keeps the likeliest
        found = _find_threshold(
            logits, columns, enough, lowest, base, scale, True, LOWEST_BIT, TILE
        )
        lowest = tl.where(tl.abs(highest) < float("inf"), found, highest)
    tl.store(floor + row, lowest)


@triton.jit
def _find_threshold(
    logits,
    columns,
    enough,
    lowest,
    base,
    scale,
    BY_MASS: tl.constexpr,
    LOWEST_BIT: tl.constexpr,
    TILE: tl.constexpr,
):
    """The largest number such that the logits at or above it weigh enough.

    By mass, only logits ≥ `lowest` count.
    """
    key = tl.full((), 0, tl.int64)
    for step in range((32 - LOWEST_BIT) // 2):
        unit = tl.full((), 1, tl.int64) << (30 - 2 * step)
        a = key + unit
        b = key + 2 * unit
        c = key + 3 * unit
        above_a, above_b, above_c = _weigh_from(
            logits, columns, a, b, c, lowest, base, scale, BY_MASS, TILE
        )
        digit = (
            (above_a >= enough).to(tl.int64)
            + (above_b >= enough).to(tl.int64)
            + (above_c >= enough).to(tl.int64)
        )
        key += digit * unit
    return _from_key(key, LOWEST_BIT)


@triton.jit
def _weigh_from(
    logits, columns, a, b, c, lowest, base, scale, BY_MASS: tl.constexpr, TILE: tl.constexpr
):
    """The weights of the logits whose keys are ≥ a, ≥ b and ≥ c."""
    lane = tl.arange(0, TILE)
    above_a = tl.zeros((TILE,), tl.int64)
    above_b = above_a
    above_c = above_a
    for first in range(0, columns, TILE):
        column = first + lane
        z = tl.load(logits + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        if BY_MASS:
            mass = tl.exp2(tl.maximum((z - base) * scale, _NO_MASS)) * _ONE
            weight = tl.where(z >= lowest, mass, 0.0).to(tl.int64)
        else:
            weight = (column < columns).to(tl.int64)
        key = _to_key(z)
        above_a += tl.where(key >= a, weight, 0)
        above_b += tl.where(key >= b, weight, 0)
        above_c += tl.where(key >= c, weight, 0)
    return tl.sum(above_a, 0), tl.sum(above_b, 0), tl.sum(above_c, 0)


@triton.jit
def _find_maximum(logits, columns, TILE: tl.constexpr):
    """The row's largest logit; NaN if any logit is NaN."""
    lane = tl.arange(0, TILE)
    maximum = tl.full((TILE,), -float("inf"), tl.float32)
    for first in range(0, columns, TILE):
        column = first + lane
        z = tl.load(logits + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        maximum = tl.maximum(maximum, z, propagate_nan=tl.PropagateNan.ALL)
    has_nan = tl.max((maximum != maximum).to(tl.int32), 0) > 0
    return tl.where(has_nan, float("nan"), tl.max(maximum, 0))


@triton.jit
def _to_key(z):
    """Maps fp32 numbers to 0 … 2³² − 1 in the order of the logits."""
    bits = z.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, -1 - bits, bits + 2147483648)


@triton.jit
def _from_key(key, LOWEST_BIT: tl.constexpr):
    """The number of a key with known bits from LOWEST_BIT up.

    The lower bits of a bf16 number are 0.
    """
    negative = key < 2147483648
    key += tl.where(negative, (1 << LOWEST_BIT) - 1, 0)
    return tl.where(negative, -1 - key, key - 2147483648).to(tl.int32).to(tl.float32, bitcast=True)
