"""The softmax of rows over a sharded vocabulary: row sums, one exchange, and the gradient.

A pass over this rank's columns keeps of each row the maximum m, Σ exp(z − m), Σ exp(z − m)·(z − m)
if the entropy is wanted, and the logits of the wanted tokens. Two all-reduces combine these
numbers over the whole row. With the log-sum-exp kept, the gradient of each shard follows from its
own logits:

    log p_t = z_t − lse               ∂/∂z_j  =  1[j = t] − p_j
    H = −Σ_j p_j log p_j              ∂/∂z_j  =  −p_j (log p_j + H)

`vocab` makes the pass over given logits, `hidden` over logits that it multiplies out block by
block; `gradient` has the backward pass. Letters: M rows, v this rank's columns, K wanted tokens in
each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.checks import check_on_device, check_temperature
from lockstep_logprobs.collectives import all_reduce
from lockstep_logprobs.shard import WHOLE, Shard

NOTHING = -150.0
"""An exponent for which 2^x and e^x are 0 in fp32.

Multiplied by that 0 it gives 0; −∞ would give NaN.
"""

LOG2_E = math.log2(math.e)

TILE_COLUMNS = 2048
"""Columns of the vocabulary per product and sum."""

_GROUP = 16
_SPARSE = 8
"""The support is searched in groups of `_GROUP` columns.

If one in `_SPARSE` groups or more may hold a token of it, all columns are computed.
"""

FEW_COLUMNS = 16
"""A product with fewer columns than this may sum in a different order."""

_NOT_WHOLE = (
    "the ranks' columns do not form a vocabulary: columns overlap or are missing, or the shard "
    "has a start but no group; starts must match the numbers of columns, and all ranks must pass "
    "the same group"
)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Options of the map from logits to log-probabilities.

    Attributes:
        shard: This rank's columns.
        temperature: Divides the logits.
        entropy: Whether to compute the entropy, too.
        sampled: Whether the only wanted token was sampled, so that it belongs to the support even
            below the floor.
        max_rows: Maximum rows per block; changes memory and speed, never values.
        overwrite: Backward writes the gradient over the logits, which saves a copy; PyTorch refuses
            to use them in backward again. Ignored in compiled code, and for logits whose rows
            overlap or are not contiguous.
        row_invariant: On a CPU, a row has the same bits in any batch, over any shards, from hidden
            states and from logits; slower.
    """

    shard: Shard = WHOLE
    temperature: float = 1.0
    entropy: bool = False
    sampled: bool = False
    max_rows: int | None = None
    overwrite: bool = False
    row_invariant: bool = False

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {self.max_rows}")


PLAIN = Scoring()
"""The model's own distribution over a vocabulary in one process."""


@dataclass(frozen=True)
class RowSums:
    """Sums of each row over columns [M], or per tile of columns [M, tiles], fp32; d = (z − m)/T.

    Attributes:
        maximum: Largest logit z, m [M].
        total: Σ exp d over the support [M].
        weighted: Σ exp d · d [M], or None without entropy.
    """

    maximum: Tensor
    total: Tensor
    weighted: Tensor | None

    @classmethod
    def from_rows(cls, sums_RM: Tensor) -> RowSums:
        """The inverse of `rows`."""
        maximum_M, total_M, *weighted = sums_RM.unbind()
        return cls(maximum_M, total_M, weighted[0] if weighted else None)

    def stack_rows(self) -> Tensor:
        """Maximum, total and, with entropy, the weighted sum, fp32 [2 or 3, M]."""
        return torch.stack(
            [self.maximum, self.total, *([] if self.weighted is None else [self.weighted])]
        )

    @classmethod
    def build_empty(cls, rows: int, entropy: bool, device: torch.device) -> RowSums:
        """The sums over no columns."""
        zeros = torch.zeros(rows, dtype=torch.float32, device=device)
        return cls(
            torch.full_like(zeros, -torch.inf), zeros, torch.zeros_like(zeros) if entropy else None
        )

    def __setitem__(self, rows: slice, sums: RowSums) -> None:
        self.maximum[rows] = sums.maximum
        self.total[rows] = sums.total
        if self.weighted is not None and sums.weighted is not None:
            self.weighted[rows] = sums.weighted

    def rebase_maximum(self, maximum_M: Tensor, temperature: float) -> RowSums:
        """The same sums with d = (z − maximum)/T, for a maximum that is no smaller."""
        down_M = _compute_drop(self.maximum, maximum_M, temperature)
        scale_M = down_M.exp()
        if self.weighted is None:
            weighted_M = None
        else:
            weighted_M = scale_M * (self.weighted + down_M * self.total)
        return RowSums(maximum_M, scale_M * self.total, weighted_M)

    def merge_tiles(self, temperature: float) -> RowSums:
        """The sums over the columns of all tiles, added to the first one after the other."""
        highest_TM = self.maximum.t().contiguous().cummax(0).values
        down_TM = _compute_drop(
            F.pad(highest_TM[:-1], (0, 0, 1, 0), value=-torch.inf), highest_TM, temperature
        )
        scale_TM = down_TM.exp()
        tile = RowSums.from_rows(self.stack_rows().mT.contiguous()).rebase_maximum(
            highest_TM, temperature
        )
        total_M = torch.zeros_like(highest_TM[0])
        weighted_M = None if tile.weighted is None else total_M
        for t, scale_M in enumerate(scale_TM):
            if weighted_M is not None and tile.weighted is not None:
                weighted_M = scale_M * (weighted_M + down_TM[t] * total_M) + tile.weighted[t]
            total_M = scale_M * total_M + tile.total[t]
        return RowSums(highest_TM[-1], total_M, weighted_M)


@dataclass(frozen=True)
class RowScores:
    """Results of each row after the exchange, the same on every rank.

    Attributes:
        logprob: log p of the tokens [M, K], nats, fp32; 0 for a token that is in no shard, −∞
            outside the support.
        entropy: H [M], nats, or None.
        maximum: m [M].
        log_total: log Σ exp d over the support [M]; 0 if the support is empty.
        token: Tokens, −1 for those in no shard [M, K].
        outside: Mask of tokens below the floor [M, K]; None without a floor.
    """

    logprob: Tensor
    entropy: Tensor | None
    maximum: Tensor
    log_total: Tensor
    token: Tensor
    outside: Tensor | None


def locate_tokens(token_MK: Tensor, start: int, columns: int) -> tuple[Tensor, Tensor]:
    """Columns of tokens in a shard [M, K], and the mask of tokens that it has.

    Columns of other tokens are arbitrary.
    """
    column_MK = token_MK - start
    return column_MK.clamp(0, max(columns - 1, 0)), (column_MK >= 0) & (column_MK < columns)


def pick_logits(z: Tensor, token_MK: Tensor, start: int) -> Tensor:
    """Logits of tokens, fp32 [M, K]; 0 for tokens outside the columns from `start` on."""
    column_MK, inside_MK = locate_tokens(token_MK, start, z.shape[1])
    return z.gather(-1, column_MK).float().masked_fill(~inside_MK, 0.0)


def to_fp32(z: Tensor, work: Tensor) -> Tensor:
    """The logits in fp32: unchanged, or a copy in `work`."""
    if z.dtype == torch.float32:
        return z
    return work.copy_(z)


def support_mask(z: Tensor, floor_M: Tensor | None) -> Tensor | None:
    """Mask, 1 inside the support and 0 outside, fp32 like z.

    A product with it is far cheaper than a masked fill.
    """
    if floor_M is None:
        return None
    return torch.ge(z, floor_M[..., None], out=torch.empty_like(z))


def write_log2_probability(
    work: Tensor, z: Tensor, maximum_M: Tensor, log_total_M: Tensor, temperature: float = 1.0
) -> None:
    """Writes log₂ p: powers of 2 are several times faster than powers of e."""
    torch.sub(z, maximum_M[:, None], out=work)
    torch.add(log_total_M[:, None] * -LOG2_E, work, alpha=LOG2_E / temperature, out=work)


def column_tiles(columns: int, row_invariant: bool = False) -> Iterator[slice]:
    """Splits the columns of a vocabulary into tiles, whose sums are merged in turn."""
    start = 0
    least = FEW_COLUMNS if row_invariant else 1
    while start < columns:
        stop = start + TILE_COLUMNS
        stop = stop if columns - stop >= least else columns
        yield slice(start, stop)
        start = stop


def sum_block(
    z: Tensor,
    work: Tensor,
    floor_M: Tensor | None,
    temperature: float = 1.0,
    entropy: bool = False,
    row_invariant: bool = False,
) -> RowSums:
    """The sums of a block of rows over its columns.

    Overwrites `work`, fp32 like z; without entropy, with exp d.

    exp2 is faster, but rounds the last numbers of a block differently from the others; exp does
    not.
    """
    z = to_fp32(z, work)
    base = 1.0 if row_invariant else LOG2_E
    maximum_M = z.amax(-1)
    inside = support_mask(z, floor_M)
    _write_d(z, maximum_M[..., None], base / temperature, work)
    power = torch.exp if row_invariant else torch.exp2
    exponential = power(work) if entropy else power(work, out=work)
    if inside is not None:
        exponential.mul_(inside)
    if not entropy:
        return RowSums(maximum_M, exponential.sum(-1), None)
    weighted_M = work.mul_(exponential).nansum(-1).div_(base)  # 0 · −∞ counts as 0
    return RowSums(maximum_M, exponential.sum(-1), weighted_M)


def reduce_tiles(x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """Reduces the columns of each row-invariant tile. Returns [M, tiles]."""
    last = list(column_tiles(x.shape[1], row_invariant=True))[-1].start
    return torch.cat(
        [reduce(x[:, :last].unflatten(1, (-1, TILE_COLUMNS)), -1), reduce(x[:, None, last:], -1)], 1
    )


def sum_tiles(
    z: Tensor, work: Tensor, floor_M: Tensor | None, temperature: float = 1.0, entropy: bool = False
) -> RowSums:
    """Sums each tile [M, tiles] as `sum_block` does, row-invariant."""
    z = to_fp32(z, work)
    few = None if floor_M is None else _find_few(z, floor_M)
    if floor_M is not None and few is not None:
        return _sum_few(z, work, few, floor_M, temperature, entropy)
    floor_M1 = None if floor_M is None else floor_M[:, None]
    last = list(column_tiles(z.shape[1], row_invariant=True))[-1].start
    parts = list[Tensor]()
    for columns, width in ((slice(last), TILE_COLUMNS), (slice(last, None), z.shape[1] - last)):
        tiles, own = (x[:, columns].unflatten(1, (-1, width)) for x in (z, work))
        parts.append(
            sum_block(tiles, own, floor_M1, temperature, entropy, row_invariant=True).stack_rows()
        )
    return RowSums.from_rows(torch.cat(parts, -1))


def _find_few(z_MV: Tensor, floor_M: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rows and columns [N] of a superset of the support; None if the support is not small.

    The columns of a group are far apart, so that the maxima of groups vectorize.
    """
    rows = len(z_MV)
    groups = z_MV.shape[1] // _GROUP
    device = z_MV.device
    best_MG = z_MV[:, : _GROUP * groups].unflatten(1, (_GROUP, -1)).amax(1)
    # also if one is NaN
    row_N, group_N = (~(best_MG < floor_M[:, None])).nonzero(as_tuple=True)
    if _SPARSE * len(row_N) >= best_MG.numel():
        return None
    column = (group_N[:, None] + torch.arange(0, _GROUP * groups, groups, device=device)).flatten()
    rest = torch.arange(_GROUP * groups, z_MV.shape[1], device=device)
    row_of_rest = torch.arange(rows, device=device).repeat_interleave(len(rest))
    return torch.cat([row_N.repeat_interleave(_GROUP), row_of_rest]), torch.cat(
        [column, rest.repeat(rows)]
    )


def _sum_few(
    z_MV: Tensor,
    work: Tensor,
    few: tuple[Tensor, Tensor],
    floor_M: Tensor,
    temperature: float,
    entropy: bool,
) -> RowSums:
    """The sums of `sum_tiles`, bit-identical, from exponentials of a few columns per row."""
    row_N, column_N = few
    maximum_MT = reduce_tiles(z_MV, torch.amax)
    place_N = row_N * z_MV.shape[1] + column_N
    tile_N = (column_N // TILE_COLUMNS).clamp_(max=maximum_MT.shape[1] - 1)
    z_N = z_MV.take(place_N)
    inside_N = (z_N >= floor_M[row_N]).float()
    d_N = _write_d(z_N, maximum_MT[row_N, tile_N], 1.0 / temperature, z_N)
    exponential_N = d_N.exp().mul_(inside_N)
    weighted_MT = None
    if entropy:
        weighted_MT = reduce_tiles(
            work.zero_().put_(place_N, d_N.mul_(exponential_N)), torch.nansum
        )
    return RowSums(
        maximum_MT, reduce_tiles(work.zero_().put_(place_N, exponential_N), torch.sum), weighted_MT
    )


def _write_d(z: Tensor, maximum: Tensor, factor: float, out: Tensor) -> Tensor:
    """Writes (z − maximum) · factor."""
    torch.sub(z, finite_maximum(maximum), out=out)
    if factor == 1.0:
        return out
    return out.mul_(factor)


def finite_maximum(maximum_M: Tensor) -> Tensor:
    """The maximum to subtract: 0 if a row is all −∞, so that its exponentials are 0 and not NaN."""
    return maximum_M.masked_fill(maximum_M == -torch.inf, 0.0)


def _compute_drop(from_M: Tensor, to_M: Tensor, temperature: float) -> Tensor:
    """d of a maximum relative to one at least as large; finite, so that its product with 0 is 0."""
    return ((from_M - finite_maximum(to_M)) / temperature).clamp_(min=NOTHING)


def reduce_over_ranks(
    local: RowSums,
    picked_MK: Tensor,
    token_MK: Tensor,
    columns: int,
    scoring: Scoring,
    floor_M: Tensor | None,
) -> RowScores:
    """All-reduces each rank's sums to those of the full row: once for maxima, once for sums.

    Args:
        local: Sums over this rank's columns.
        picked_MK: Logits of the wanted tokens, fp32; 0 if another rank has the token.
        token_MK: Wanted tokens.
        columns: Number of columns on this rank.
        scoring: Options of the sums.
        floor_M: Floor of the sums.
    """
    group = scoring.shard.group
    # Only the last rank knows where the vocabulary ends; it sends that along with the maxima, in
    # fp32 exact up to 2²⁴ tokens.
    end = local.maximum.new_full((1,), scoring.shard.start + columns)
    highest = all_reduce(torch.cat([local.maximum, end]), group, dist.ReduceOp.MAX)
    token_MK = token_MK.masked_fill((token_MK < 0) | (token_MK >= highest[-1]), -1)
    row_RM = local.rebase_maximum(highest[:-1], scoring.temperature).stack_rows()
    message = torch.cat([row_RM[1:].flatten(), picked_MK.flatten(), end.new_full((1,), columns)])
    sums, logits, held = all_reduce(message, group).split(
        [row_RM[1:].numel(), picked_MK.numel(), 1]
    )
    if picked_MK.shape[1]:  # without wanted tokens, it does not matter which columns a rank holds
        check_on_device(held == highest[-1:], _NOT_WHOLE)
    whole = RowSums.from_rows(torch.cat([finite_maximum(row_RM[:1]), sums.view_as(row_RM[1:])]))
    return _finish_scores(whole, logits.view(picked_MK.shape), token_MK, scoring, floor_M)


def _finish_scores(
    whole: RowSums, picked_MK: Tensor, token_MK: Tensor, scoring: Scoring, floor_M: Tensor | None
) -> RowScores:
    """log p and H from the sums over the full row."""
    total_M = whole.total
    weighted_M = whole.weighted
    outside_MK = None
    d_MK = (picked_MK - whole.maximum[:, None]) / scoring.temperature
    if floor_M is not None:
        outside_MK = (picked_MK < floor_M[:, None]) & (token_MK >= 0)
    if outside_MK is not None and not scoring.sampled:
        d_MK = d_MK.masked_fill(outside_MK, -torch.inf)
    elif outside_MK is not None:
        extra_M = torch.where(outside_MK, d_MK.exp(), 0.0)[:, 0]
        total_M = total_M + extra_M
        if weighted_M is not None:
            weighted_M = weighted_M + extra_M * d_MK[:, 0].clamp(min=NOTHING)
    total_M = total_M.masked_fill(total_M == 0, 1.0)  # an empty support: log total 0, entropy 0
    log_total_M = total_M.log()
    return RowScores(
        logprob=(d_MK - log_total_M[:, None]).masked_fill(token_MK < 0, 0.0),
        entropy=None if weighted_M is None else log_total_M - weighted_M / total_M,
        maximum=whole.maximum,
        log_total=log_total_M,
        token=token_MK,
        outside=outside_MK,
    )
