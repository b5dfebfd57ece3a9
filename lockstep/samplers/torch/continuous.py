"""The layout of a pass in continuous batching: decode of running sequences, prefill of new prompts.

A running sequence has one token in a pass, a prompt all its tokens that are not cached.

Letters: N tokens of a pass, R running sequences, C prompts with a cached prefix, B blocks of a
prompt, H heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.core.batch import Batch
from lockstep.models.attention import AttentionLayout, PackedLayout, find_visible
from lockstep.models.exact.attention import BLOCK as QUERIES
from lockstep.models.exact.attention import KEYS
from lockstep.models.kernels import AttentionKernel
from lockstep.samplers.torch.dense_cache import KVBuffer
from lockstep.samplers.torch.paged_cache import BLOCK, PagedKVCache


class DecodeAttention:
    """Attention of running sequences, buffer by buffer, followed by padding tokens.

    Args:
        buffers: Buffers with their keys and values.
        position_R: Position of each sequence's new token.
        padding: Number of padding tokens; their attention is 0.
    """

    def __init__(self, buffers: Sequence[KVBuffer], position_R: Tensor, padding: int) -> None:
        self._padding = padding
        positions = position_R.split([len(buffer.slots) for buffer in buffers])
        self._parts = [
            (buffer, torch.arange(len(position), device=position.device), position)
            for buffer, position in zip(buffers, positions, strict=True)
        ]
        self._widths = [buffer.longest + 1 + -(buffer.longest + 1) % KEYS for buffer in buffers]
        self._masks: dict[tuple[object, ...], list[Tensor]] = {}

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> list[Tensor]:
        """Attention of one token per sequence [R, H, D]: a tensor per buffer, zeros for padding."""
        out = list[Tensor]()
        start = 0
        mask_key = type(kernel), window
        if mask_key not in self._masks:  # the same for all layers of a pass
            self._masks[mask_key] = [
                kernel.build_mask(find_visible(position, width, window))
                for (_, _, position), width in zip(self._parts, self._widths, strict=True)
            ]
        masks = self._masks[mask_key]
        for (buffer, row, position), width, mask in zip(
            self._parts, self._widths, masks, strict=True
        ):
            own = slice(start, start := start + len(row))
            keys, values = buffer.layers[layer]
            keys[row, :, position] = key[own]
            values[row, :, position] = value[own]
            k = keys[: len(row), :, :width]
            v = values[: len(row), :, :width]
            out.append(kernel.attend_newest(query[own], k, v, mask, scaling))
        if self._padding:
            return [*out, query.new_zeros(self._padding, *query.shape[1:])]
        return out


@dataclass(frozen=True)
class CachedPrefixPrefill:
    """Prompts whose first tokens are already in blocks (a prefix cache hit).

    Attributes:
        blocks: Their blocks, including the new tokens' [C, B].
        row: Index of each new token's prompt.
        position: Position of each new token.
        first: Position of the first computed query, a multiple of a query block; at or before the
            first new token.
    """

    blocks: Tensor
    row: Tensor
    position: Tensor
    first: int

    @classmethod
    def from_blocks(cls, blocks: Tensor, cached: Tensor, length: Tensor) -> Self:
        """Prompts of `length` tokens, the first `cached` in blocks; both int64 [C] on the CPU."""
        tokens = Batch(torch.arange(int((length - cached).sum())), length - cached)
        first = int(cached.min()) // QUERIES * QUERIES
        position = cached[tokens.row] + tokens.position
        return cls(blocks, tokens.row.to(blocks.device), position.to(blocks.device), first)

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query_NHD: Tensor,
        paged: PagedKVCache,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Attention of new tokens to cached and new tokens before them [N, H, D]."""
        key, value = paged.read_blocks(layer, self.blocks)
        width = key.shape[2] - self.first
        column = self.position - self.first
        grid = query_NHD.new_zeros(len(self.blocks), width, *query_NHD.shape[1:])
        grid[self.row, column] = query_NHD
        out = kernel.attend_causally(grid.transpose(1, 2), key, value, scaling, window)
        return out.unflatten(0, (-1, width))[self.row, column]


@dataclass(frozen=True)
class PrefillAttention:
    """Attention of new prompts, whose KV goes to blocks; prompts with a cached prefix come last.

    Attributes:
        block: Block of each token.
        position: Position of each token.
        uncached: Layout of prompts without a cached prefix; None: no such prompts.
        num_uncached: Number of tokens in these prompts.
        cached: Prompts with a cached prefix; None: no such prompts.
    """

    block: Tensor
    position: Tensor
    uncached: PackedLayout | None
    num_uncached: int
    cached: CachedPrefixPrefill | None

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        paged: PagedKVCache,
        scaling: float,
        window: int | None,
    ) -> list[Tensor]:
        """Attention of all new tokens, from heads-first [1, H, N, D] to [N, H, D]."""
        paged.write_tokens(
            layer,
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            self.block,
            self.position % BLOCK,
        )
        out = list[Tensor]()
        if self.uncached is not None:
            q, k, v = (x[:, :, : self.num_uncached] for x in (query, key, value))
            out.append(self.uncached.attend(kernel, layer, q, k, v, scaling, window)[0])
        if self.cached is not None:
            query_NHD = query[0, :, self.num_uncached :].transpose(0, 1)
            out.append(self.cached.attend(kernel, layer, query_NHD, paged, scaling, window))
        return out


class ContinuousLayout(AttentionLayout):
    """The layout of one pass: tokens of running sequences, then tokens of new prompts.

    Args:
        paged: KV cache of the prompts.
        num_decoded: Number of tokens of running sequences, including padding.
        decode: Attention of running sequences; None: no such tokens.
        prefill: Attention of new prompts; None: no new prompts.
    """

    def __init__(
        self,
        paged: PagedKVCache,
        num_decoded: int,
        decode: DecodeAttention | None,
        prefill: PrefillAttention | None,
    ) -> None:
        self._paged = paged
        self._num_decoded = num_decoded
        self._decode = decode
        self._prefill = prefill

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        out = list[Tensor]()
        if self._decode is not None:
            q, k, v = (x[0, :, : self._num_decoded].transpose(0, 1) for x in (query, key, value))
            out += self._decode.attend(kernel, layer, q, k, v, scaling, window)
        if self._prefill is not None:
            q, k, v = (x[:, :, self._num_decoded :] for x in (query, key, value))
            out += self._prefill.attend(kernel, layer, q, k, v, self._paged, scaling, window)
        return (out[0] if len(out) == 1 else torch.cat(out))[None]


def call_modules(
    lm: PreTrainedModel,
    token_N: Tensor,
    position_N: Tensor,
    layout: ContinuousLayout,
    keep_M: Tensor,
) -> Tensor:
    """Logits [M, V] of a pass's tokens at indices `keep_M`, by the model's own modules."""
    return lm(
        input_ids=token_N[None],
        position_ids=position_N[None],
        use_cache=False,
        layout=layout,
        logits_to_keep=keep_M,
    ).logits[0]
