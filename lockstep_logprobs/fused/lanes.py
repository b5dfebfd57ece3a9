"""Sums over a row's columns, in an order that depends only on the row's length.

A program goes through its row tile by tile, and lane l of a tile keeps its own sums, over the
columns l, l + TILE, l + 2·TILE and so on. At the end lanes are added in pairs. So the bits of a row
depend neither on other rows nor on how lanes are spread over threads, which follows the alignment
of the memory that is read.
"""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-150.0)
"""An exponent for which 2^x is 0 in fp32.

Multiplied by that 0 it gives 0; −∞ would give NaN.
"""

WARPS = 8
"""Threads per program, in units of 32."""


def launch_kernel(kernel: Any, programs: tuple[int, ...], *args: Any) -> None:
    """Launches a kernel's programs on the GPU of its first argument."""
    with torch.cuda.device_of(args[0]):
        kernel[programs](*args, num_warps=WARPS)


@triton.jit
def add_lanes(x, HALVINGS: tl.constexpr):
    """The sum of 2^HALVINGS lanes, by pairs: a + b and b + a have the same bits.

    `tl.sum` follows the threads.
    """
    for _ in tl.static_range(HALVINGS):
        x = tl.sum(tl.reshape(x, (x.shape[0] // 2, 2)), 1)
    return tl.sum(x, 0)


@triton.jit
def finite_base(maximum):
    """The maximum to subtract: 0 if all is −∞, so that exponentials are 0 and not NaN."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def add_logits(z, inside, maximum, total, weighted, scale, ENTROPY: tl.constexpr):
    """Adds one logit to each lane's sums: max z, Σ 2^d and Σ 2^d·d of those inside the support.

    d = (z − max z)·scale. Either the new logit or the old maximum is the new maximum, so one
    exponential is enough: that of the lower of the two.
    """
    highest = tl.maximum(maximum, z, propagate_nan=tl.PropagateNan.ALL)
    d = (tl.minimum(maximum, z) - finite_base(highest)) * scale
    power = tl.exp2(d)
    higher = z > maximum
    if ENTROPY:
        d = tl.maximum(d, NOTHING)
        weighted = tl.where(
            higher, power * (weighted + d * total), weighted + tl.where(inside, power * d, 0.0)
        )
    one = tl.where(inside, 1.0, 0.0)
    more = tl.where(inside, power, 0.0)
    total = tl.where(higher, power * total + one, total + more)
    return highest, total, weighted


@triton.jit
def merge_lanes(maximum, total, weighted, scale, ENTROPY: tl.constexpr, HALVINGS: tl.constexpr):
    """The row's sums from its lanes' sums."""
    highest = tl.max(maximum, 0)
    d = (maximum - finite_base(highest)) * scale  # a NaN lane stays NaN, and so does the sum
    power = tl.exp2(d)
    if ENTROPY:
        weighted = add_lanes(power * (weighted + tl.maximum(d, NOTHING) * total), HALVINGS)
    return highest, add_lanes(power * total, HALVINGS), weighted
