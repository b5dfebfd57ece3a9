"""The tokens of a pass and their layout: decode of running rows, prefill of new prompts.

Letters: N tokens of a pass, M of them with logits, P prompts, B blocks of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.attention import PackedLayout
from lockstep.samplers.torch.continuous import CachedPrefixRows, PrefillRows
from lockstep.samplers.torch.pool import BLOCK
from lockstep.samplers.torch.rows import SharedPrompt


def cut_rows(lengths: Sequence[int], rows: int, tokens: int) -> list[range]:
    """Splits rows, in order, into passes of at most `rows` rows and `tokens` tokens.

    A longer row gets its own pass.
    """
    passes = list[range]()
    start = 0
    held = 0
    for row, length in enumerate(lengths):
        if row > start and (row == start + rows or held + length > tokens):
            passes.append(range(start, row))
            start = row
            held = 0
        held += length
    return [*passes, range(start, len(lengths))]


@dataclass(frozen=True)
class PassTokens:
    """Tokens and their positions, int64 [N], and the indices of tokens with logits, int64 [M]."""

    token: Tensor
    position: Tensor
    keep: Tensor

    def append_passes(self, others: PassTokens) -> PassTokens:
        """These tokens, followed by others."""
        token = torch.cat([self.token, others.token])
        position = torch.cat([self.position, others.position])
        return PassTokens(token, position, torch.cat([self.keep, others.keep + len(self.token)]))


def take_prompts(
    prompts: Sequence[SharedPrompt], multiple: int, device: torch.device
) -> tuple[PassTokens, PrefillRows]:
    """The prompts' tokens without their cached prefixes; the last token of each has logits.

    Args:
        prompts: The prompts; prompts without a cached prefix come first.
        multiple: See `PackedLayout.from_batch`.
        device: Device of the model.
    """
    known_P = torch.tensor([prompt.known for prompt in prompts])
    length_P = torch.tensor([len(prompt.tokens) for prompt in prompts])
    flat = torch.tensor([token for prompt in prompts for token in prompt.tokens[prompt.known :]])
    new = Batch(flat, length_P - known_P)
    most = max(len(prompt.blocks) for prompt in prompts)
    block_PB = torch.tensor(
        [prompt.blocks + prompt.blocks[:1] * (most - len(prompt.blocks)) for prompt in prompts]
    )
    position_N = known_P[new.row] + new.position
    block_N = block_PB[new.row, position_N // BLOCK].to(device)
    tokens = PassTokens(
        flat.to(device), position_N.to(device), (new.starts + new.lengths - 1).to(device)
    )
    whole = int((known_P == 0).sum())
    num_whole = int(length_P[known_P == 0].sum())
    if whole:
        packed = PackedLayout.from_batch(
            Batch(tokens.token[:num_whole], length_P[:whole]), multiple
        )
    else:
        packed = None
    if whole == len(prompts):
        return tokens, PrefillRows(block_N, tokens.position, packed, num_whole, None)
    continued = CachedPrefixRows.from_blocks(
        block_PB[whole:].to(device), known_P[whole:], length_P[whole:]
    )
    return tokens, PrefillRows(block_N, tokens.position, packed, num_whole, continued)
