"""Row sums over a sharded vocabulary with the bits of one process: by tiles of the vocabulary.

Sums of shards would round differently. So one rank sums each tile, the one with its first column.
If not all shards begin where tiles do, ranks gather the head of each shard, its columns in another
rank's tile. All ranks then merge the sums of all tiles in order.

Letters: M rows, m rows of a block, C ranks, T tiles, K wanted tokens in each row, R sums of a row,
h columns of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.collectives import all_gather, all_reduce, group_rank
from lockstep_logprobs.kernel import runs_fused
from lockstep_logprobs.shard import split_rows
from lockstep_logprobs.softmax import (
    TILE_COLUMNS,
    RowSums,
    Scoring,
    column_tiles,
    pick_logits,
    sum_tiles,
)


def sum_shared_tiles(
    read: Callable[[slice, slice], Tensor],
    columns: int,
    token_MK: Tensor,
    scoring: Scoring,
    floor_M: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Row-invariant sums, from which `reduce_over_ranks` makes the scores of one process.

    Args:
        read: The logits of some rows in a tile, as far as it is on this rank; the tile's numbers
            count from this rank's first column.
        columns: Number of columns on this rank.
        token_MK: Wanted tokens.
        scoring: Options of the sums, with a group.
        floor_M: Floor of the sums.

    Returns:
        Sums of whole rows (`RowSums.stack_rows`), on all ranks except the first only maxima; and
        the logits of the tokens in tiles that this rank sums, fp32 [M, K].

    Raises:
        ValueError: The device sums by Triton's kernels, in other tiles.
    """
    if runs_fused(token_MK):
        raise ValueError(
            "row_invariant over a shard's group works only on CPUs, but these rows are on "
            f"{token_MK.device}; pass row_invariant=False or no group"
        )
    start, group = scoring.shard.start, scoring.shard.group
    stop = start + columns
    bounds = all_gather(token_MK.new_tensor([start, stop]), group).tolist()
    tiles = list(column_tiles(max(high for _, high in bounds), row_invariant=True))
    edges = [0, *(tile.stop for tile in tiles)]
    heads = [min(high, *(edge for edge in edges if edge >= low)) - low for low, high in bounds]
    shared = next((tile for tile in tiles if tile.start < start < tile.stop), slice(start, start))
    order = sorted(range(len(bounds)), key=bounds.__getitem__)
    rank = group_rank(group)
    sums_RMT = torch.zeros(2 + scoring.entropy, len(token_MK), len(tiles), device=token_MK.device)
    picked_MK = torch.zeros_like(token_MK, dtype=torch.float32)
    for rows in split_rows(len(token_MK), TILE_COLUMNS, token_MK.device):
        further = []
        if most := max(heads):
            head = read(rows, slice(shared.start - start, shared.stop - start))
            head_Cmh = all_gather(F.pad(head, (0, most - heads[rank])), group)
            further = [head_Cmh[r, :, : heads[r]] for r in order if bounds[r][0] >= stop]
        for t, tile in enumerate(tiles):
            if not start <= tile.start < stop:
                continue
            z = read(rows, slice(tile.start - start, tile.stop - start))
            if tile.stop > stop:
                z = torch.cat([z, *further], 1)[:, : tile.stop - tile.start]
            work = torch.empty_like(z, dtype=torch.float32)
            own_M = None if floor_M is None else floor_M[rows]
            sums_RMT[:, rows, t] = sum_tiles(
                z, work, own_M, scoring.temperature, scoring.entropy
            ).stack_rows()[..., 0]
            picked_MK[rows] += pick_logits(z, token_MK[rows], tile.start)
    all_reduce(sums_RMT, group)
    sums_RM = RowSums.from_rows(sums_RMT).merge_tiles(scoring.temperature).stack_rows()
    sums_RM[1:] *= rank == 0  # their sum over ranks is one rank's
    return sums_RM, picked_MK
