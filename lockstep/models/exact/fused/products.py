"""Batch-invariant products and row norms: each program reads its whole rows in a fixed order."""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lockstep_logprobs.fused.lanes import add_lanes, launch_kernel
from lockstep_logprobs.fused.rows import with_adjacent_columns

_ROWS = 64
_COLUMNS = 128
"""Tile of results, regardless of the number of rows."""

_BYTES = 128
"""Bytes of a row that are multiplied in one step."""

_TILE = 1024
_HALVINGS = 10


def multiply_tiles(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias for [M, D] and [C, D] of one type; accumulates in fp32, rounds once."""
    rows = with_adjacent_columns(x)
    weights = with_adjacent_columns(weight)
    out = x.new_empty(len(x), len(weight))
    sizes = len(x), len(weight), x.shape[1], rows.stride(0), weights.stride(0)
    if out.numel():
        programs = triton.cdiv(len(x), _ROWS), triton.cdiv(len(weight), _COLUMNS)
        launch_kernel(
            _multiply_kernel,
            programs,
            rows,
            weights,
            bias,
            out,
            *sizes,
            _ROWS,
            _COLUMNS,
            _BYTES // x.itemsize,
        )
    return out


@triton.jit
def _multiply_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    columns,
    depth,
    x_stride,
    weight_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    here = (row < rows)[:, None]
    there = (column < columns)[:, None]
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, depth, DEPTH):
        d = first + tl.arange(0, DEPTH)
        inside = (d < depth)[None, :]
        a = tl.load(x + row[:, None] * x_stride + d[None, :], mask=here & inside, other=0.0)
        b = tl.load(
            weight + column[:, None] * weight_stride + d[None, :], mask=there & inside, other=0.0
        )
        z = tl.dot(a, tl.trans(b), z, input_precision="ieee")
    if bias is not None:
        z += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * columns + column[None, :], z, mask=here & (column < columns)[None, :]
    )


def mean_squares(x: Tensor) -> Tensor:
    """The mean square of each row, fp32 [M], from [M, D]."""
    rows = with_adjacent_columns(x)
    out = x.new_empty(len(x))
    if len(x):
        launch_kernel(
            _mean_squares, (len(x),), rows, out, x.shape[1], rows.stride(0), _TILE, _HALVINGS
        )
    return out


@triton.jit
def _mean_squares(x, out, columns, stride, TILE: tl.constexpr, HALVINGS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for first in range(0, columns, TILE):
        z = tl.load(x + row * stride + first + lane, mask=first + lane < columns, other=0.0)
        total += z * z
    tl.store(out + row, add_lanes(total, HALVINGS) / columns)
