"""The passes of `hidden`: tiles of logits are computed in registers and summed there in fp32.

A program handles a tile's rows and one piece of the vocabulary. The bounds of pieces do not depend
on the number of rows, and pieces are merged in order. Backward recomputes bit-identical logits,
since both passes multiply in the same tiles.
"""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_logprobs.fused.lanes import LOG2_E, NOTHING, finite_base, launch_kernel
from lockstep_logprobs.fused.rows import (
    differentiate_row,
    make_contiguous,
    power_scale,
    with_adjacent_columns,
)
from lockstep_logprobs.gradient import RowGradient
from lockstep_logprobs.shard import split_rows
from lockstep_logprobs.softmax import RowSums

SMALL = (64, 128)
LARGE = (128, 256)
"""Rows and columns of a tile of logits.

The large one reads its operands less often, and needs 144 KiB of shared memory.
"""

_HAVE_ROOM = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities with shared memory for the large tile: A100, H100 and H200, B200, B300."""

_BYTES = 128
"""Bytes of a hidden state per multiplication step."""

_PIECE = 8192
"""Columns of the vocabulary per program; a multiple of a tile's."""


def choose_tile(x: Tensor) -> tuple[int, int]:
    """The tile for a tensor's device.

    Forward and backward use the same tile, so that they compute the same logits.
    """
    if x.is_cuda and torch.cuda.get_device_capability(x.device) in _HAVE_ROOM:
        return LARGE
    return SMALL


def hidden_row_sums(
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    start: int,
    temperature: float,
    entropy: bool,
    max_rows: int | None,
    row_invariant: bool,
) -> tuple[Tensor, Tensor]:
    """`hidden._hidden_row_sums`, always row-invariant; `max_rows` is not needed."""
    if hidden.dtype == torch.bfloat16 and not hidden.is_cuda:
        raise NotImplementedError(
            "Triton's interpreter does not support bf16 products; use fp16 or fp32"
        )
    (rows, depth) = hidden.shape
    (columns, _) = weight.shape
    tokens = token.shape[1]
    picked_MK = torch.zeros_like(token, dtype=torch.float32).contiguous()
    pieces = triton.cdiv(columns, _PIECE)
    if not rows or not pieces:
        return RowSums.build_empty(rows, entropy, hidden.device).stack_rows(), picked_MK
    sums_RMT = hidden.new_empty((2 + entropy, rows, pieces), dtype=torch.float32)
    states = with_adjacent_columns(hidden)
    head = with_adjacent_columns(weight.to(hidden.dtype))
    sizes = (
        rows,
        columns,
        depth,
        tokens,
        states.stride(0),
        head.stride(0),
        start,
        power_scale(temperature),
    )
    tile = choose_tile(states)
    programs = triton.cdiv(rows, tile[0]), pieces
    tiles = entropy, *tile, _BYTES // states.itemsize, _PIECE
    launch_kernel(
        _sum_piece,
        programs,
        states,
        head,
        *make_contiguous(token),
        sums_RMT,
        picked_MK,
        *sizes,
        *tiles,
    )
    return RowSums.from_rows(sums_RMT).merge_tiles(temperature).stack_rows(), picked_MK


@triton.jit
def _sum_piece(
    hidden,
    weight,
    token,
    sums,
    picked,
    rows,
    columns,
    depth,
    tokens,
    hidden_stride,
    weight_stride,
    start,
    scale,
    ENTROPY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    piece = tl.program_id(1)
    pieces = tl.num_programs(1)
    maximum = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    weighted = tl.zeros((ROWS,), tl.float32)
    for first in range(piece * PIECE, tl.minimum((piece + 1) * PIECE, columns), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        z = _multiply_tile(
            hidden, weight, row, column, rows, columns, depth, hidden_stride, weight_stride, DEPTH
        )
        for k in range(tokens):
            wanted = tl.load(token + row * tokens + k, mask=row < rows, other=-1) - start
            inside = (wanted >= first) & (wanted < tl.minimum(first + COLUMNS, columns))
            z_wanted = tl.sum(tl.where(column[None, :] == wanted[:, None], z, 0.0), 1)
            tl.store(picked + row * tokens + k, z_wanted, mask=inside & (row < rows))
        highest = tl.maximum(maximum, tl.max(z, 1))
        base = finite_base(highest)
        d = (z - base[:, None]) * scale
        fall = (maximum - base) * scale
        power = tl.exp2(d)
        shrink = tl.exp2(fall)
        if ENTROPY:
            weighted = shrink * (weighted + tl.maximum(fall, NOTHING) * total)
            weighted += tl.sum(power * tl.maximum(d, NOTHING), 1)
        maximum = highest
        total = shrink * total + tl.sum(power, 1)
    out = sums + row * pieces + piece
    tl.store(out, maximum, mask=row < rows)
    tl.store(out + rows * pieces, total, mask=row < rows)
    if ENTROPY:
        tl.store(out + 2 * rows * pieces, weighted / LOG2_E, mask=row < rows)


def gradient_tiles(
    hidden_MD: Tensor, head_cD: Tensor, row: RowGradient, start: int, max_rows: int | None
) -> Iterator[tuple[slice, Tensor]]:
    """`hidden._gradient_tiles`."""
    states_MD = with_adjacent_columns(hidden_MD)
    head = with_adjacent_columns(head_cD)
    (columns, depth), tile = head.shape, choose_tile(states_MD)
    for own in split_rows(len(states_MD), columns, hidden_MD.device, max_rows):
        states = states_MD[own]
        numbers = make_contiguous(*row[own].schema_tensors[:-1])
        gradient = states.new_empty(len(states), columns)
        sizes = (
            len(states),
            columns,
            depth,
            row.token.shape[1],
            states.stride(0),
            head.stride(0),
            start,
        )
        programs = triton.cdiv(len(states), tile[0]), triton.cdiv(columns, tile[1])
        tensors = states, head, gradient, *numbers
        tiles = *tile, _BYTES // states.itemsize
        launch_kernel(_write_tile, programs, *tensors, *sizes, power_scale(row.temperature), *tiles)
        yield own, gradient


@triton.jit
def _write_tile(
    hidden,
    weight,
    gradient,
    maximum,
    log_total,
    slope,
    offset,
    token,
    own,
    rows,
    columns,
    depth,
    tokens,
    hidden_stride,
    weight_stride,
    start,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = _multiply_tile(
        hidden, weight, row, column, rows, columns, depth, hidden_stride, weight_stride, DEPTH
    )
    m = tl.load(maximum + row, mask=row < rows)
    log2_total = tl.load(log_total + row, mask=row < rows) * LOG2_E
    c = tl.load(offset + row, mask=row < rows)
    if slope is None:
        h = tl.zeros_like(c)
    else:
        h = tl.load(slope + row, mask=row < rows) / LOG2_E
    result = differentiate_row(
        z, -float("inf"), m[:, None], log2_total[:, None], h[:, None], c[:, None], scale
    )
    for k in range(tokens):
        wanted_id = tl.load(token + row * tokens + k, mask=row < rows, other=-1)
        more = tl.where(
            wanted_id < 0, 0.0, tl.load(own + row * tokens + k, mask=row < rows, other=0.0)
        )
        result += tl.where(column[None, :] == (wanted_id - start)[:, None], more[:, None], 0.0)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(gradient + row[:, None] * columns + column[None, :], result, mask=inside)


@triton.jit
def _multiply_tile(
    hidden,
    weight,
    row,
    column,
    rows,
    columns,
    depth,
    hidden_stride,
    weight_stride,
    DEPTH: tl.constexpr,
):
    """A tile of logits, hidden · weightᵀ, in fp32; −∞ beyond the columns."""
    z = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    column = column.to(tl.int64)
    for first in range(0, depth, DEPTH):
        d = first + tl.arange(0, DEPTH)
        inside = (d < depth)[None, :]
        a = tl.load(
            hidden + row[:, None] * hidden_stride + d[None, :],
            mask=(row < rows)[:, None] & inside,
            other=0.0,
        )
        b = tl.load(
            weight + column[:, None] * weight_stride + d[None, :],
            mask=(column < columns)[:, None] & inside,
            other=0.0,
        )
        z = tl.dot(a, tl.trans(b), z, input_precision="ieee")
    return tl.where((column < columns)[None, :], z, -float("inf"))
