"""The tokens of a pass: one of each running row, and those of prompts that are new.

Letters: N tokens of a pass, M of them with logits, R running rows, P prompts, B blocks of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.models.paged import BLOCK, Continued, Growing
from lockstep.samplers.torch.rows import Places, Prompt, Row


@dataclass(frozen=True)
class Tokens:
    """Tokens, their positions and their blocks, int64 [N], and which of them have logits [M]."""

    token: Tensor
    position: Tensor
    block: Tensor
    keep: Tensor

    def join(self, others: Tokens) -> Tokens:
        """These tokens, and others behind them."""
        return Tokens(
            torch.cat([self.token, others.token]),
            torch.cat([self.position, others.position]),
            torch.cat([self.block, others.block]),
            torch.cat([self.keep, others.keep + len(self.token)]),
        )


def take_newest(places: Places, place_R: Tensor, rows: Sequence[Row], filling: int) -> tuple[Tokens, Growing]:
    """The newest token of each running row, and of so many rows that are nobody's, whose logits are not wanted."""
    keep = torch.arange(len(rows), device=place_R.device)
    if filling:
        place_R = torch.cat([place_R, place_R.new_full((filling,), places.count)])
    widths = [len(row.blocks) for row in rows] + [1] * filling
    block_RB, position_R = places.block_SB[place_R, : max(widths)], places.filled_S[place_R]
    block_R = block_RB.gather(1, position_R[:, None] // BLOCK)[:, 0]
    return Tokens(places.token_S[place_R], position_R, block_R, keep), Growing(block_RB, position_R, widths)


def take_prompts(prompts: Sequence[Prompt], device: torch.device) -> tuple[Tokens, Tensor, Continued | None]:
    """The tokens of prompts that are not known, of whole prompts first.

    Returns:
        Tokens, of which the last of each prompt has logits; lengths of whole prompts, int64 on the CPU; and the layout
        of those that continue what is known.
    """
    known_P = torch.tensor([prompt.known for prompt in prompts])
    length_P = torch.tensor([len(prompt.tokens) for prompt in prompts])
    flat = torch.tensor([token for prompt in prompts for token in prompt.tokens[prompt.known :]])
    new = Batch(flat, length_P - known_P)
    most = max(len(prompt.blocks) for prompt in prompts)
    block_PB = torch.tensor([prompt.blocks + [0] * (most - len(prompt.blocks)) for prompt in prompts])
    position_N = known_P[new.row] + new.position
    columns = (flat, position_N, block_PB[new.row, position_N // BLOCK], new.starts + new.lengths - 1)
    whole = int((known_P == 0).sum())
    tokens, fresh = Tokens(*(column.to(device) for column in columns)), length_P[:whole]
    if whole == len(prompts):
        return tokens, fresh, None
    return tokens, fresh, Continued.of(block_PB[whole:].to(device), known_P[whole:], length_P[whole:])
