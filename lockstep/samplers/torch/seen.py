"""Counts of the tokens that each running row has had, for penalties.

Letters: S slots for rows, R running rows, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.distributed.penalties import EarlierTokens


class SeenTokens:
    """Tokens of each row, and their counts in its response.

    Args:
        places: Number of slots.
        columns: Vocabulary size.
        device: Device of the model.
    """

    def __init__(self, places: int, columns: int, device: torch.device) -> None:
        self._any_SV = torch.zeros(places, columns, dtype=torch.bool, device=device)
        self._times_SV = torch.zeros(places, columns, dtype=torch.int32, device=device)

    def begin_row(self, place: int, prompt: Sequence[int], response: Sequence[int] = ()) -> None:
        """Puts a row into its slot, with its response so far."""
        device = self._any_SV.device
        self._any_SV[place] = False
        self._times_SV[place] = 0
        self._any_SV[place, torch.tensor([*prompt, *response], device=device)] = True
        made = torch.tensor(response, dtype=torch.int64, device=device)
        self._times_SV[place] += torch.bincount(made, minlength=self._times_SV.shape[1]).int()

    def add_tokens(self, place_R: Tensor, token_R: Tensor) -> None:
        """Adds a token to each row's response."""
        self._any_SV[place_R, token_R] = True
        self._times_SV[place_R, token_R] += 1

    def earlier_tokens(self, place_R: Tensor) -> EarlierTokens:
        """The earlier tokens of each row."""
        row_P, token_P = self._any_SV[place_R].nonzero(as_tuple=True)
        return EarlierTokens(row_P, token_P, self._times_SV[place_R[row_P], token_P].long())
