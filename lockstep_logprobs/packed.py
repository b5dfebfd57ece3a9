"""Packed rows: several sequences in one row, each cut zig-zag over context-parallel ranks.

Each sequence is cut separately. Everything is computed on the device from the sequences' bounds, in
a few operations for any number of sequences, without a device sync.

Letters: T tokens of the row, B sequences, C ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs.checks import check_on_device, is_integer

_DO_NOT_FIT = (
    "invalid cu_seqlens for a packed row of {tokens} tokens (over all context-parallel ranks): "
    "they must start at 0, not decrease, end within the row, and differ by multiples of "
    "{multiple}; pad each sequence"
)


@dataclass(frozen=True)
class Packing:
    """Concatenated sequences. Positions are those in the full row unless a method says otherwise.

    Tokens after the last sequence are treated as one more sequence.

    Attributes:
        cu_seqlens: Start of each sequence and end of the last, integers [B+1] on the device. Over
            several ranks every length is a multiple of 2C; a sequence may be empty.
        tokens: T, the length of the row over all ranks.
        size: C, the number of context-parallel ranks.
    """

    cu_seqlens: Tensor
    tokens: int
    size: int = 1

    def __post_init__(self) -> None:
        if self.cu_seqlens.dim() != 1 or not is_integer(self.cu_seqlens):
            raise ValueError(
                f"cu_seqlens must be integers [B+1], not {self.cu_seqlens.dtype} "
                f"{list(self.cu_seqlens.shape)}"
            )
        multiple = 2 * self.size if self.size > 1 else 1
        if self.tokens % multiple:
            raise ValueError(
                f"cannot split the sequences of a packed row of {self.tokens} tokens into "
                f"{multiple} equal chunks for {self.size} context-parallel ranks; pad each to a "
                f"multiple of {multiple}"
            )
        length = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        wrong = ((length < 0) | (length % multiple != 0)).sum()
        wrong = wrong + (self.cu_seqlens[0] != 0) + (self.cu_seqlens[-1] > self.tokens)
        check_on_device(wrong == 0, _DO_NOT_FIT.format(tokens=self.tokens, multiple=multiple))

    def positions(self, rank: int) -> Tensor:
        """The position of each token that a rank holds, int64 [T/C]."""
        return self._positions_on(torch.full((1, 1), rank, device=self.cu_seqlens.device))[0]

    def gather_index(self) -> Tensor:
        """Index of each position in the concatenated ranks' rows, int64 [T]."""
        held = self._positions_on(
            torch.arange(self.size, device=self.cu_seqlens.device)[:, None]
        ).view(-1)
        return torch.zeros_like(held).scatter(
            0, held, torch.arange(self.tokens, device=held.device)
        )

    def following(self) -> Tensor:
        """Position of each token's successor, int64 [T]; wraps around at a sequence's end."""
        position = torch.arange(self.tokens, device=self.cu_seqlens.device)
        start, end = self._find_bounds(position, share=1)
        return torch.where(position + 1 < end, position + 1, start)

    def rows(self, width: int) -> Tensor:
        """Index that moves each sequence's next-token values to a separate row.

        The last token has none.

        Args:
            width: Width of the rows; longer sequences lose their ends.

        Returns:
            The position for each cell, int64 [B, width]; T for empty cells.
        """
        starts = self.cu_seqlens[:-1, None].long()
        ends = self.cu_seqlens[1:, None].long()
        position = starts + torch.arange(width, device=starts.device)
        return torch.where(position < ends - 1, position, self.tokens)

    def _positions_on(self, rank: Tensor) -> Tensor:
        """The positions that ranks [R, 1] hold, int64 [R, T/C]."""
        index = torch.arange(self.tokens // self.size, device=self.cu_seqlens.device)
        start, end = self._find_bounds(index, share=self.size)
        offset = index - start // self.size
        chunk = (end - start) // (2 * self.size)
        # its first token is already at an offset of one chunk
        late = (2 * self.size - 2 - rank) * chunk
        return start + offset + torch.where(offset < chunk, rank * chunk, late)

    def _find_bounds(self, index: Tensor, share: int) -> tuple[Tensor, Tensor]:
        """Bounds of the sequence at each index of a row that has 1/`share` of each sequence."""
        bounds = F.pad(self.cu_seqlens.long(), (0, 1), value=self.tokens)
        sequence = torch.searchsorted(bounds // share, index, right=True) - 1
        return bounds[sequence], bounds[sequence + 1]
