"""Token counts of running sequences, for penalties.

Letters: S slots, R running sequences, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.distributed.penalties import EarlierTokens


class PenaltyCounts:
    """The tokens of each running sequence, and their counts in its response.

    Args:
        slots: Number of slots.
        columns: Vocabulary size.
        device: Device of the model.
    """

    def __init__(self, slots: int, columns: int, device: torch.device) -> None:
        self._present_SV = torch.zeros(slots, columns, dtype=torch.bool, device=device)
        self._count_SV = torch.zeros(slots, columns, dtype=torch.int32, device=device)

    def start_sequence(
        self, slot: int, prompt: Sequence[int], response: Sequence[int] = ()
    ) -> None:
        """Starts counting for a sequence in its slot, from its response so far."""
        device = self._present_SV.device
        self._present_SV[slot] = False
        self._count_SV[slot] = 0
        self._present_SV[slot, torch.tensor([*prompt, *response], device=device)] = True
        token_K = torch.tensor(response, dtype=torch.int64, device=device)
        self._count_SV[slot] += torch.bincount(token_K, minlength=self._count_SV.shape[1]).int()

    def add_tokens(self, slot_R: Tensor, token_R: Tensor) -> None:
        """Adds a token to each sequence's response."""
        self._present_SV[slot_R, token_R] = True
        self._count_SV[slot_R, token_R] += 1

    def earlier_tokens(self, slot_R: Tensor) -> EarlierTokens:
        """The earlier tokens of each sequence."""
        row_P, token_P = self._present_SV[slot_R].nonzero(as_tuple=True)
        return EarlierTokens(row_P, token_P, self._count_SV[slot_R[row_P], token_P].long())
