"""One rank's share of a micro-batch: part of each sequence under context parallelism, else all.

Sequences and their row are padded to lengths that can be cut. Padding lies to the right of a
sequence, where causality hides it, or after the last one, as another sequence. Results come back at
the positions of the unpadded batch.

Letters: N tokens of the batch, T of the padded row over all ranks, n of this rank's share of it, M
of interest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.distributed.ranks import RankMesh
from lockstep.models.attention import PackedLayout, SideBySide
from lockstep.models.prefixes import PathTree
from lockstep.models.zigzag import ZigzagLayout
from lockstep_logprobs.collectives import sum_over_ranks
from lockstep_logprobs.packed import Packing


@dataclass(frozen=True)
class RowShare:
    """A rank's share of a row.

    Attributes:
        tokens: Token ids, int64 [n].
        position: Positions in their sequences, int64 [n].
        layout: Attention layout of the tokens.
        place: Index of each token of the batch in the share, −1 for tokens of other ranks, int64
            [N]; tokens of a shared prefix have the same. None: the share is the batch itself.
        ranks: Ranks that hold the shares.
        rows: Number of rows of the grid; 1: packed sequences.
    """

    tokens: Tensor
    position: Tensor
    layout: PackedLayout | SideBySide | ZigzagLayout
    place: Tensor | None
    ranks: RankMesh
    rows: int = 1

    @classmethod
    def from_batch(
        cls,
        batch: Batch,
        ranks: RankMesh,
        side_by_side: bool = False,
        multiple: int = 1,
        share_prefixes: bool = False,
    ) -> RowShare:
        """One rank's share; row and grid sizes are multiples of `multiple` tokens.

        Sequences that are cut (cp) or side by side share no prefixes.
        """
        shares = ranks.size("cp")
        if side_by_side:
            return cls._from_padded_rows(batch, ranks)
        if shares == 1:
            tree = PathTree.from_batch(batch) if share_prefixes else PathTree.from_separate(batch)
            return cls._from_tree(batch, ranks, multiple, tree)
        filled, place_N = _pad_sequences(batch, 2 * shares, ranks.size("tp") * multiple)
        bounds = torch.cat([filled.starts, filled.lengths.sum()[None]]).to(batch.tokens.device)
        packing = Packing(bounds, filled.tokens.numel(), shares)
        held_n = packing.positions(ranks.index("cp"))
        share_T = torch.full_like(filled.tokens, -1).scatter(
            0, held_n, torch.arange(len(held_n), device=held_n.device)
        )
        layout = ZigzagLayout.from_row(filled, packing, ranks.index("cp"), ranks.group("cp"))
        return cls(filled.tokens[held_n], filled.position[held_n], layout, share_T[place_N], ranks)

    @classmethod
    def _from_tree(cls, batch: Batch, ranks: RankMesh, multiple: int, tree: PathTree) -> RowShare:
        """The computed tokens of a tree, and padding as one more sequence."""
        count = tree.source_index.numel()
        tail = -count % (ranks.size("tp") * multiple)
        if tail == 0 and count == batch.tokens.numel():
            layout = PackedLayout.from_batch(batch, multiple, tree)
            return cls(batch.tokens, batch.position, layout, None, ranks)
        filled = batch
        if tail:
            filled = Batch(
                torch.cat([batch.tokens, batch.tokens.new_zeros(tail)]),
                torch.cat([batch.lengths, batch.lengths.new_tensor([tail])]),
            )
            tree = tree.add_sequence(len(batch), tail)
        layout = PackedLayout.from_batch(filled, multiple, tree)
        place_N = tree.computed_index[: batch.tokens.numel()]
        return cls(
            filled.tokens[tree.source_index],
            filled.position[tree.source_index],
            layout,
            place_N,
            ranks,
        )

    @classmethod
    def _from_padded_rows(cls, batch: Batch, ranks: RankMesh) -> RowShare:
        """One right-padded row per sequence; attention and recurrent states ignore padding."""
        width = int(batch.lengths.max())
        place_N = batch.row * width + batch.position
        tokens_T = batch.tokens.new_zeros(len(batch) * width).index_copy(0, place_N, batch.tokens)
        position_T = torch.arange(width, device=batch.tokens.device).repeat(len(batch))
        return cls(tokens_T, position_T, SideBySide(), place_N, ranks, len(batch))

    @property
    def model_inputs(self) -> dict[str, Any]:
        """Inputs in the form that `transformers` models take."""
        return {
            "input_ids": self.tokens.view(self.rows, -1),
            "position_ids": self.position.view(self.rows, -1),
            "use_cache": False,
            "layout": self.layout,
        }

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> RowShare:
        """The same share with each tensor mapped."""
        place = None if self.place is None else change(self.place)
        tokens = change(self.tokens)
        position = change(self.position)
        return replace(
            self,
            tokens=tokens,
            position=position,
            layout=self.layout.map_tensors(change),
            place=place,
        )

    def select_states(self, state_M: Tensor) -> tuple[Tensor | slice, Tensor]:
        """Selects this rank's states: their indices [m] into M, and into its share [m]."""
        if self.place is None:
            return slice(None), state_M
        place_M = self.place[state_M]
        if self.ranks.size("cp") == 1:
            return slice(None), place_M
        here = (place_M >= 0).nonzero().squeeze(-1)
        return here, place_M[here]

    def spread_column(self, column_m: Tensor, into: Tensor, size: int) -> Tensor:
        """Scatters this rank's values into a zero column, and sums the columns of all ranks.

        Args:
            column_m: This rank's values, [m] or [m, …].
            into: Index of each in the column, int64 [m].
            size: Size of the returned column.
        """
        column = column_m.new_zeros(size, *column_m.shape[1:]).index_copy(0, into, column_m)
        return sum_over_ranks(column, self.ranks.group("cp"))


def _pad_sequences(batch: Batch, multiple: int, divisor: int) -> tuple[Batch, Tensor]:
    """Pads each sequence to a multiple of `multiple`, and the row to one of multiple · divisor.

    Returns:
        The padded batch, and the index of each token in it, int64 [N].
    """
    lengths = -(-batch.lengths // multiple) * multiple
    tail = -int(lengths.sum()) % (multiple * divisor)
    start_B = (lengths.cumsum(0) - lengths).to(batch.tokens.device)
    place_N = start_B[batch.row] + batch.position
    tokens_T = batch.tokens.new_zeros(int(lengths.sum()) + tail).index_copy(
        0, place_N, batch.tokens
    )
    return Batch(
        tokens_T, torch.cat([lengths, lengths.new_tensor([tail] if tail else [])])
    ), place_N
