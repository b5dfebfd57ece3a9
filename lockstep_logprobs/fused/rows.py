"""The passes of `vocab`: one program per row, each logit read once, fp32 arithmetic.

Letters: M rows, v this rank's columns, K wanted tokens in each row.
"""

# pyright: reportMissingImports=false
# Triton must not be installed with vLLM for CPUs, so the type checker's environment lacks it.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lockstep_logprobs.fused.lanes import LOG2_E, NOTHING, add_logits, launch_kernel, merge_lanes
from lockstep_logprobs.gradient import RowGradient

_TILE = 4096
_HALVINGS = 12


def row_sums(
    logits: Tensor,
    token: Tensor,
    floor: Tensor | None,
    start: int,
    temperature: float,
    entropy: bool,
    max_rows: int | None,
    row_invariant: bool,
) -> tuple[Tensor, Tensor]:
    """`vocab._row_sums`, always row-invariant; `max_rows` is not needed."""
    (rows, columns) = logits.shape
    tokens = token.shape[1]
    sums_RM = logits.new_empty((2 + entropy, rows), dtype=torch.float32)
    picked_MK = token.new_empty(token.shape, dtype=torch.float32)
    if rows:
        logits = with_adjacent_columns(logits)
        (token_MK, floor_M) = make_contiguous(token, floor)
        tensors = logits, token_MK, floor_M, sums_RM, picked_MK
        sizes = columns, tokens, logits.stride(0), start, power_scale(temperature)
        launch_kernel(
            _sum_row, (rows,), *tensors, *sizes, entropy, _TILE, _HALVINGS, _power_of_2(tokens)
        )
    return sums_RM, picked_MK


@triton.jit
def _sum_row(
    logits,
    token,
    floor,
    sums,
    picked,
    columns,
    tokens,
    stride,
    start,
    scale,
    ENTROPY: tl.constexpr,
    TILE: tl.constexpr,
    HALVINGS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    logits += row * stride
    lane = tl.arange(0, TILE)
    maximum = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    weighted = tl.zeros((TILE,), tl.float32)
    lowest = -float("inf") if floor is None else tl.load(floor + row)
    for first in range(0, columns, TILE):
        column = first + lane
        z = tl.load(logits + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        maximum, total, weighted = add_logits(
            z, z >= lowest, maximum, total, weighted, scale, ENTROPY
        )
    highest, total, weighted = merge_lanes(maximum, total, weighted, scale, ENTROPY, HALVINGS)
    tl.store(sums + row, highest)
    tl.store(sums + rows + row, total)
    if ENTROPY:
        tl.store(sums + 2 * rows + row, weighted / LOG2_E)

    k = tl.arange(0, TOKENS)
    wanted = tl.load(token + row * tokens + k, mask=k < tokens, other=-1) - start
    inside = (wanted >= 0) & (wanted < columns)
    z_wanted = tl.load(logits + wanted, mask=inside, other=0.0).to(tl.float32)
    tl.store(picked + row * tokens + k, z_wanted, mask=k < tokens)


def logits_gradient(
    logits: Tensor,
    maximum: Tensor,
    log_total: Tensor,
    slope: Tensor | None,
    offset: Tensor,
    token: Tensor,
    own: Tensor,
    floor: Tensor | None,
    temperature: float,
    start: int,
    max_rows: int | None,
) -> Tensor:
    """`vocab._logits_gradient`."""
    gradient_Mv = torch.empty_like(logits, memory_format=torch.contiguous_format)
    row = RowGradient(maximum, log_total, slope, offset, token, own, floor, temperature)
    write_gradient(gradient_Mv, logits, row, start, max_rows)
    return gradient_Mv


def write_gradient(
    result_Mv: Tensor, logits_Mv: Tensor, row: RowGradient, start: int, max_rows: int | None
) -> None:
    """`vocab._write_gradient`."""
    (rows, columns) = logits_Mv.shape
    tokens = row.token.shape[1]
    if rows:
        logits_Mv = with_adjacent_columns(logits_Mv)
        sizes = (
            columns,
            tokens,
            logits_Mv.stride(0),
            result_Mv.stride(0),
            start,
            power_scale(row.temperature),
        )
        tensors = logits_Mv, result_Mv, *make_contiguous(*row.schema_tensors)
        launch_kernel(_write_row_gradient, (rows,), *tensors, *sizes, _TILE, _power_of_2(tokens))


@triton.jit
def _write_row_gradient(
    logits,
    gradient,
    maximum,
    log_total,
    slope,
    offset,
    token,
    own,
    floor,
    columns,
    tokens,
    stride,
    gradient_stride,
    start,
    scale,
    TILE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Writes a row's gradient.

    In place is safe, since no logit is read after its column was written.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    gradient += row * gradient_stride
    m = tl.load(maximum + row)
    log2_total = tl.load(log_total + row) * LOG2_E
    c = tl.load(offset + row)
    h = 0.0 if slope is None else tl.load(slope + row) / LOG2_E
    lowest = -float("inf") if floor is None else tl.load(floor + row)

    k = tl.arange(0, TOKENS)
    wanted_id = tl.load(token + row * tokens + k, mask=k < tokens, other=-1)
    wanted = wanted_id - start
    inside = (wanted_id >= 0) & (wanted >= 0) & (wanted < columns)
    z_wanted = tl.load(logits + wanted, mask=inside, other=-float("inf")).to(tl.float32)
    of_wanted = differentiate_row(z_wanted, lowest, m, log2_total, h, c, scale)
    # a repeated token collects both, and both write the same sum
    for other in range(tokens):
        same = wanted_id == tl.load(token + row * tokens + other)
        of_wanted += tl.where(same, tl.load(own + row * tokens + other), 0.0)

    for first in range(0, columns, TILE):
        column = first + tl.arange(0, TILE)
        z = tl.load(logits + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        tl.store(
            gradient + column,
            differentiate_row(z, lowest, m, log2_total, h, c, scale),
            mask=column < columns,
        )
    tl.debug_barrier()  # other threads may have written the wanted tokens' columns
    tl.store(gradient + wanted, of_wanted, mask=inside)


@triton.jit
def differentiate_row(z, lowest, maximum, log2_total, slope, offset, scale):
    """p·(c − h·log₂ p) of logits inside the support, 0 elsewhere; see `gradient.RowGradient`."""
    log2_p = (z - maximum) * scale - log2_total
    gradient = (offset - slope * tl.maximum(log2_p, NOTHING)) * tl.exp2(log2_p)
    return tl.where(z < lowest, 0.0, gradient)


def with_adjacent_columns(matrix: Tensor) -> Tensor:
    """The matrix, copied if the columns of a row are not contiguous."""
    if matrix.stride(1) == 1:
        return matrix
    return matrix.contiguous()


def make_contiguous(*small: Tensor | None) -> list[Tensor | None]:
    """Makes small per-row tensors contiguous; None stays None."""
    return [None if x is None else x.contiguous() for x in small]


def power_scale(temperature: float) -> float:
    """The factor that turns differences of logits into exponents of 2."""
    return math.log2(math.e) / temperature


def _power_of_2(tokens: int) -> int:
    return triton.next_power_of_2(max(tokens, 1))
