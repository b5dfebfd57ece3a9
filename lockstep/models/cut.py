"""One rank's share of a micro-batch: everything, or its share of each sequence under context parallelism.

Sequences are filled up so that they can be cut, and so can their row; what fills them up lies to their right, where
causality hides it, or behind the last one, as another sequence. Numbers come back in the places of the batch.

Letters: N tokens of the batch, T of the filled row over all ranks, n of this rank's share of it, M of interest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.ranks import Ranks
from lockstep.models.attention import Packed, SideBySide
from lockstep.models.zigzag import Zigzag
from lockstep_logprobs.collectives import sum_over_ranks
from lockstep_logprobs.packed import Packing


@dataclass(frozen=True)
class Cut:
    """A rank's share of a row.

    Attributes:
        tokens: Its token ids, int64 [n].
        position: Their places in their sequences, int64 [n].
        layout: Which tokens they see.
        place: Place of each token of the batch in the share, −1 for those of other ranks, int64 [N]; None: all, as
            they are.
        ranks: Those that have the other shares.
        rows: Number of rows that the tokens are cut into; 1: all in one, each sequence blind to its neighbors.
    """

    tokens: Tensor
    position: Tensor
    layout: Packed | SideBySide | Zigzag
    place: Tensor | None
    ranks: Ranks
    rows: int = 1

    @classmethod
    def of(cls, batch: Batch, ranks: Ranks, side_by_side: bool = False, multiple: int = 1) -> Cut:
        """The share of a rank; `multiple`: the row and the grids of attention have a multiple of so many tokens."""
        shares = ranks.size("cp")
        if side_by_side:
            return cls._grid(batch, ranks)
        if shares == ranks.size("tp") == multiple == 1:
            return cls(batch.tokens, batch.position, Packed.of(batch), None, ranks)
        filled, place_N = _pad(batch, 2 * shares if shares > 1 else 1, ranks.size("tp") * multiple)
        if shares == 1:
            return cls(filled.tokens, filled.position, Packed.of(filled, multiple), place_N, ranks)
        bounds = torch.cat([filled.starts, filled.lengths.sum()[None]]).to(batch.tokens.device)
        packing = Packing(bounds, filled.tokens.numel(), shares)
        held_n = packing.positions(ranks.index("cp"))
        share_T = torch.full_like(filled.tokens, -1).scatter(0, held_n, torch.arange(len(held_n), device=held_n.device))
        layout = Zigzag.of(filled, packing, ranks.index("cp"), ranks.group("cp"))
        return cls(filled.tokens[held_n], filled.position[held_n], layout, share_T[place_N], ranks)

    @classmethod
    def _grid(cls, batch: Batch, ranks: Ranks) -> Cut:
        """A row for each sequence, filled up to the right, where neither attention nor a state looks."""
        width = int(batch.lengths.max())
        place_N = batch.row * width + batch.position
        tokens_T = batch.tokens.new_zeros(len(batch) * width).index_copy(0, place_N, batch.tokens)
        position_T = torch.arange(width, device=batch.tokens.device).repeat(len(batch))
        return cls(tokens_T, position_T, SideBySide(), place_N, ranks, len(batch))

    @property
    def inputs(self) -> dict[str, Any]:
        """Inputs as `transformers` models take them."""
        return {
            "input_ids": self.tokens.view(self.rows, -1),
            "position_ids": self.position.view(self.rows, -1),
            "use_cache": False,
            "layout": self.layout,
        }

    def map(self, change: Callable[[Tensor], Tensor]) -> Cut:
        """The same share, with each tensor changed."""
        place = None if self.place is None else change(self.place)
        tokens, position = change(self.tokens), change(self.position)
        return replace(self, tokens=tokens, position=position, layout=self.layout.map(change), place=place)

    def locate(self, state_M: Tensor) -> tuple[Tensor | slice, Tensor]:
        """Finds which of some states this rank has: their indices [m] into M, and their places in its share, [m]."""
        if self.place is None:
            return slice(None), state_M
        place_M = self.place[state_M]
        if self.ranks.size("cp") == 1:
            return slice(None), place_M
        here = (place_M >= 0).nonzero().squeeze(-1)
        return here, place_M[here]

    def spread(self, column_m: Tensor, into: Tensor, size: int) -> Tensor:
        """Puts numbers where they belong, 0 elsewhere, and those of all ranks together.

        Args:
            column_m: Values of this rank, [m] or [m, …].
            into: Place of each, int64 [m].
            size: Size of the returned column.
        """
        column = column_m.new_zeros(size, *column_m.shape[1:]).index_copy(0, into, column_m)
        return sum_over_ranks(column, self.ranks.group("cp"))


def _pad(batch: Batch, multiple: int, divisor: int) -> tuple[Batch, Tensor]:
    """Pads sequences to a multiple, and the row to one of a divisor as well; returns where tokens went."""
    lengths = -(-batch.lengths // multiple) * multiple
    tail = -int(lengths.sum()) % (multiple * divisor)
    start_B = (lengths.cumsum(0) - lengths).to(batch.tokens.device)
    place_N = start_B[batch.row] + batch.position
    tokens_T = batch.tokens.new_zeros(int(lengths.sum()) + tail).index_copy(0, place_N, batch.tokens)
    return Batch(tokens_T, torch.cat([lengths, lengths.new_tensor([tail] if tail else [])])), place_N
