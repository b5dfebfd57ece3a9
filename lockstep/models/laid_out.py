"""A micro-batch with its layout and all indices that a model needs.

They are computed once on the CPU and copied along.

Letters: N tokens of the batch, n of this rank's share of it, m of those that are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, assert_never

import torch
from torch import Tensor

from lockstep.core import align
from lockstep.core.batch import Batch
from lockstep.distributed.ranks import RankMesh
from lockstep.models.cut import RowShare


@dataclass(frozen=True)
class OutputStates:
    """The states of a rank's share whose outputs are computed.

    Attributes:
        state: Indices in the share, int64 [m].
        into: Index of each output in the batch's column, int64 [m].
    """

    state: Tensor
    into: Tensor

    @classmethod
    def from_share(cls, cut: RowShare, state_M: Tensor, into_M: Tensor) -> OutputStates:
        """Keeps the batch's states that are in this rank's share."""
        here, state_m = cut.select_states(state_M)
        return cls(state_m, into_M[here])

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> OutputStates:
        """The same with each tensor mapped."""
        return OutputStates(change(self.state), change(self.into))


@dataclass(frozen=True, kw_only=True)
class LaidOut(Batch):
    """A batch with the layout and the indices that a model needs.

    Attributes:
        cut: Share of this rank.
        read: Outputs to compute: of masked tokens, or, for a critic, of tokens with values; values
            after the ends of sequences go to indices N, N + 1, ….
        masked: Mask with which it was laid out, and the indices of its tokens; None: no mask.
    """

    cut: RowShare
    read: OutputStates
    masked: tuple[Tensor, Tensor] | None

    @classmethod
    def from_batch(
        cls,
        batch: Batch,
        ranks: RankMesh,
        read: Callable[[Batch, RowShare], OutputStates],
        side_by_side: bool = False,
        multiple: int = 1,
        share_prefixes: bool = False,
    ) -> LaidOut:
        """Lays out a batch; on the CPU, so that a pass need not sync with its device.

        Args:
            batch: The batch.
            ranks: Ranks that hold the model together.
            read: Selects the outputs to compute.
            side_by_side: See `RowShare.from_batch`.
            multiple: See `RowShare.from_batch`.
            share_prefixes: See `RowShare.from_batch`.
        """
        batch = batch.keep_places()
        paths = batch.split_paths().keep_places()
        cut = RowShare.from_batch(paths, ranks, side_by_side, multiple, share_prefixes)
        masked = (batch.mask, batch.mask_indices) if "mask" in batch.token else None
        return cls(**vars(batch), cut=cut, read=read(batch, cut), masked=masked)

    @property
    def mask_indices(self) -> Tensor:
        """Indices of trainable tokens, without a device sync, unless the mask has been replaced."""
        known = self._known_indices
        if known is None:
            return super().mask_indices
        return known

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        cut = self.cut.map_tensors(change)
        read = self.read.map_tensors(change)
        changed = replace(super().map(change), cut=cut, read=read, masked=None)
        known = self._known_indices
        if known is None:
            return changed
        return replace(changed, masked=(changed.mask, change(known)))

    @property
    def _known_indices(self) -> Tensor | None:
        """Indices of trainable tokens, if the mask is the one with which the batch was laid out."""
        if self.masked is not None and self.masked[0] is self.token.get("mask"):
            return self.masked[1]
        return None

    def to(self, device: torch.device | str) -> Self:
        """The batch and its indices on `device`, by asynchronous copies from pinned memory."""
        if torch.device(device).type == "cpu":
            return super().to(device)
        return self.map(lambda tensor: tensor.pin_memory().to(device, non_blocking=True))


def read_masked(batch: Batch, cut: RowShare) -> OutputStates:
    """Reads the states before masked tokens; a sequence's first token has none."""
    own_M = _list_masked(batch)
    return OutputStates.from_share(cut, align.state_before(own_M), own_M)


def read_values(batch: Batch, cut: RowShare) -> OutputStates:
    """Reads the states before tokens whose values are requested, and those after sequences."""
    match batch.values:
        case "all":
            own_M = align.target_indices(batch)
        case "masked":
            own_M = _list_masked(batch)
        case "final":
            own_M = torch.zeros(0, dtype=torch.int64, device=batch.tokens.device)
        case _:
            assert_never(batch.values)
    count = batch.tokens.numel()
    after_B = torch.arange(len(batch), device=batch.tokens.device) + count
    state_M = torch.cat([align.state_before(own_M), align.state_after(batch)])
    return OutputStates.from_share(cut, state_M, torch.cat([own_M, after_B]))


def _list_masked(batch: Batch) -> Tensor:
    return (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
