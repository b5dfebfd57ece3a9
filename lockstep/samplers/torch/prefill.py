"""The tokens of a pass, and the layout of the prompts that it prefills.

Letters: N tokens of a pass, M of them with logits, P prompts, B blocks of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.attention import PackedLayout
from lockstep.samplers.torch.continuous import CachedPrefixPrefill, PrefillAttention
from lockstep.samplers.torch.paged_cache import BLOCK
from lockstep.samplers.torch.sequences import SharedPrompt


def split_passes(lengths: Sequence[int], max_sequences: int, max_tokens: int) -> list[range]:
    """Splits sequences, in order, into passes of limited numbers of sequences and tokens.

    A longer sequence gets its own pass.
    """
    passes = list[range]()
    start = 0
    tokens = 0
    for index, length in enumerate(lengths):
        if index > start and (index == start + max_sequences or tokens + length > max_tokens):
            passes.append(range(start, index))
            start = index
            tokens = 0
        tokens += length
    return [*passes, range(start, len(lengths))]


@dataclass(frozen=True)
class PassTokens:
    """Tokens and their positions, int64 [N], and the indices of tokens with logits, int64 [M]."""

    token: Tensor
    position: Tensor
    keep: Tensor

    def append_tokens(self, others: PassTokens) -> PassTokens:
        """These tokens, followed by others."""
        token = torch.cat([self.token, others.token])
        position = torch.cat([self.position, others.position])
        return PassTokens(token, position, torch.cat([self.keep, others.keep + len(self.token)]))


def prefill_prompts(
    prompts: Sequence[SharedPrompt], multiple: int, device: torch.device
) -> tuple[PassTokens, PrefillAttention]:
    """The prompts' tokens without their cached prefixes; the last token of each has logits.

    Args:
        prompts: The prompts; prompts without a cached prefix come first.
        multiple: See `PackedLayout.from_batch`.
        device: Device of the model.
    """
    cached_P = torch.tensor([prompt.num_cached for prompt in prompts])
    length_P = torch.tensor([len(prompt.tokens) for prompt in prompts])
    new_tokens = list[int]()
    for prompt in prompts:
        new_tokens += prompt.tokens[prompt.num_cached :]
    flat = torch.tensor(new_tokens)
    new = Batch(flat, length_P - cached_P)
    most = max(len(prompt.blocks) for prompt in prompts)
    block_PB = torch.tensor(
        [prompt.blocks + prompt.blocks[:1] * (most - len(prompt.blocks)) for prompt in prompts]
    )
    position_N = cached_P[new.row] + new.position
    block_N = block_PB[new.row, position_N // BLOCK].to(device)
    tokens = PassTokens(
        flat.to(device), position_N.to(device), (new.starts + new.lengths - 1).to(device)
    )
    uncached = int((cached_P == 0).sum())
    num_uncached = int(length_P[cached_P == 0].sum())
    if uncached:
        packed = PackedLayout.from_batch(
            Batch(tokens.token[:num_uncached], length_P[:uncached]), multiple
        )
    else:
        packed = None
    if uncached == len(prompts):
        return tokens, PrefillAttention(block_N, tokens.position, packed, num_uncached, None)
    cached = CachedPrefixPrefill.from_blocks(
        block_PB[uncached:].to(device), cached_P[uncached:], length_P[uncached:]
    )
    return tokens, PrefillAttention(block_N, tokens.position, packed, num_uncached, cached)
