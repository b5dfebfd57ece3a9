"""The layout of a pass in continuous batching: decode of running rows, prefill of new rows.

A running row has one token in a pass, a new row its prompt.

Letters: N tokens of a pass, R running rows, C new rows whose beginning is cached, B blocks of a
row, H heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.core.batch import Batch
from lockstep.models.attention import AttentionLayout, PackedLayout, find_visible
from lockstep.models.exact.attention import BLOCK as QUERIES
from lockstep.models.exact.attention import KEYS
from lockstep.models.kernels import AttentionKernel
from lockstep.samplers.torch.extents import KVArena
from lockstep.samplers.torch.pool import BLOCK, PagedKVCache


class DecodeRows:
    """Running rows, arena by arena, followed by padding tokens.

    Args:
        arenas: Arenas with their keys and values.
        position_R: Position of each row's new token.
        filling: Number of padding tokens; their attention is 0.
    """

    def __init__(self, arenas: Sequence[KVArena], position_R: Tensor, filling: int) -> None:
        self.filling = filling
        parts = position_R.split([len(arena.rows) for arena in arenas])
        self._parts = [
            (arena, torch.arange(len(position), device=position.device), position)
            for arena, position in zip(arenas, parts, strict=True)
        ]
        self._widths = [arena.filled + 1 + -(arena.filled + 1) % KEYS for arena in arenas]
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
        """Attention of one new token per row [R, H, D]: a tensor per arena, zeros for padding."""
        out = list[Tensor]()
        start = 0
        masks = self._build_masks(kernel, window)
        for (arena, row, position), width, mask in zip(
            self._parts, self._widths, masks, strict=True
        ):
            some = slice(start, start := start + len(row))
            keys, values = arena.layers[layer]
            keys[row, :, position] = key[some]
            values[row, :, position] = value[some]
            k = keys[: len(row), :, :width]
            v = values[: len(row), :, :width]
            out.append(kernel.attend_newest(query[some], k, v, mask, scaling))
        if self.filling:
            return [*out, query.new_zeros(self.filling, *query.shape[1:])]
        return out

    def _build_masks(self, kernel: AttentionKernel, window: int | None) -> list[Tensor]:
        """The masks of a kernel, computed once for all layers of a pass."""
        key = type(kernel), window
        if key not in self._masks:
            self._masks[key] = [
                kernel.build_mask(find_visible(position, width, window))
                for (_, _, position), width in zip(self._parts, self._widths, strict=True)
            ]
        return self._masks[key]


@dataclass(frozen=True)
class CachedPrefixRows:
    """New rows whose first tokens are already in blocks (a prefix cache hit).

    Attributes:
        blocks: Their blocks, including the new tokens' [C, B].
        row: Row of each new token.
        position: Position of each new token.
        first: Position of the first computed query, a multiple of a query block; at or before the
            first new token.
    """

    blocks: Tensor
    row: Tensor
    position: Tensor
    first: int

    @classmethod
    def from_blocks(cls, blocks: Tensor, known: Tensor, length: Tensor) -> CachedPrefixRows:
        """Rows of `length` tokens, the first `known` in blocks; both int64 [C] on the CPU."""
        tokens = Batch(torch.arange(int((length - known).sum())), length - known)
        first = int(known.min()) // QUERIES * QUERIES
        position = known[tokens.row] + tokens.position
        return cls(blocks, tokens.row.to(blocks.device), position.to(blocks.device), first)

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query_NHD: Tensor,
        pool: PagedKVCache,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Attention of new tokens to those before them, known or new [N, H, D]."""
        key, value = pool.read_blocks(layer, self.blocks)
        width = key.shape[2] - self.first
        place = self.position - self.first
        grid = query_NHD.new_zeros(len(self.blocks), width, *query_NHD.shape[1:])
        grid[self.row, place] = query_NHD
        out = kernel.attend_causally(grid.transpose(1, 2), key, value, scaling, window)
        return out.unflatten(0, (-1, width))[self.row, place]


@dataclass(frozen=True)
class PrefillRows:
    """New rows, whose KV goes to blocks: first rows without a cached prefix, then the others.

    Attributes:
        block: Block of each token.
        position: Position of each token.
        whole: Layout of rows without a cached prefix; None: no such rows.
        num_whole: Number of tokens in these rows.
        continued: Rows with a cached prefix; None: no such rows.
    """

    block: Tensor
    position: Tensor
    whole: PackedLayout | None
    num_whole: int
    continued: CachedPrefixRows | None

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pool: PagedKVCache,
        scaling: float,
        window: int | None,
    ) -> list[Tensor]:
        """Attention of all tokens of new rows, from heads-first [1, H, N, D] to [N, H, D]."""
        pool.write_tokens(
            layer,
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            self.block,
            self.position % BLOCK,
        )
        out = list[Tensor]()
        if self.whole is not None:
            q, k, v = (x[:, :, : self.num_whole] for x in (query, key, value))
            out.append(self.whole.attend(kernel, layer, q, k, v, scaling, window)[0])
        if self.continued is not None:
            query_NHD = query[0, :, self.num_whole :].transpose(0, 1)
            out.append(self.continued.attend(kernel, layer, query_NHD, pool, scaling, window))
        return out


class ContinuousLayout(AttentionLayout):
    """The layout of one pass: tokens of running rows, then tokens of new rows.

    Args:
        pool: KV pool of new rows.
        running: Number of tokens of running rows, including padding.
        growing: The running rows; None: no such tokens.
        beginning: The new rows; None: no new rows.
    """

    def __init__(
        self,
        pool: PagedKVCache,
        running: int,
        growing: DecodeRows | None,
        beginning: PrefillRows | None,
    ) -> None:
        self._pool = pool
        self._running = running
        self._growing = growing
        self._beginning = beginning

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
        if self._growing is not None:
            q, k, v = (x[0, :, : self._running].transpose(0, 1) for x in (query, key, value))
            out += self._growing.attend(kernel, layer, q, k, v, scaling, window)
        if self._beginning is not None:
            q, k, v = (x[:, :, self._running :] for x in (query, key, value))
            out += self._beginning.attend(kernel, layer, q, k, v, self._pool, scaling, window)
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
