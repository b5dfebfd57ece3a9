"""Keys and values in blocks of 16 tokens, and the attention of a pass over them: one new token per row, and new prompts.

A block may be part of several rows: those that begin alike. So a prompt is computed once, whatever is generated from it.

Letters: N tokens of a pass, R rows, B blocks of a row, H heads of keys, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.models.attention import Kernel, KernelLayout, Packed
from lockstep.models.exact.attention import BLOCK as QUERY_BLOCK
from lockstep.models.exact.attention import KEYS

BLOCK = KEYS
"""Tokens of a block."""

_CHUNK = 2**20
"""Bytes of keys and values that are collected at once: they are read again while they are in the processor's cache."""


class Pool:
    """The memory of all blocks, [blocks, 2, H, 16, D] for each layer; made when a layer first writes to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = 0
        self._layers: dict[int, Tensor] = {}

    def resize(self, count: int) -> None:
        """Makes room for so many blocks, and keeps what is there."""
        if count > self._count:
            for layer, held in self._layers.items():
                self._layers[layer] = torch.cat([held, held.new_zeros(count - len(held), *held.shape[1:])])
            self._count = count

    def write(self, layer: int, key_NHD: Tensor, value_NHD: Tensor, block_N: Tensor, offset_N: Tensor) -> None:
        """Writes the keys and values of tokens to their places."""
        if layer not in self._layers:
            dtype = torch.promote_types(key_NHD.dtype, value_NHD.dtype)
            self._layers[layer] = key_NHD.new_zeros(
                (self._count, 2, key_NHD.shape[1], BLOCK, key_NHD.shape[2]), dtype=dtype
            )
        held = self._layers[layer]
        held[block_N, :, :, offset_N] = torch.stack([key_NHD, value_NHD], 1).to(held.dtype)

    def places(self, layer: int, block_RB: Tensor) -> Tensor:
        """Where in a layer's memory the keys and values of rows are, for `read`; the same for layers of one shape."""
        heads = self._layers[layer].shape[2]
        key_RHB = block_RB[:, None] * (2 * heads) + torch.arange(heads, device=self._device)[:, None]
        return torch.stack([key_RHB, key_RHB + heads])

    def read(self, layer: int, place_2RHB: Tensor) -> tuple[Tensor, Tensor]:
        """Collects the keys and values of rows, each [R, H, 16 · B, D]."""
        size = self._layers[layer].shape[4]
        read = self._layers[layer].view(-1, BLOCK * size).index_select(0, place_2RHB.flatten())
        key, value = read.view(*place_2RHB.shape[:3], -1, size).unbind()
        return key, value

    def shape(self, layer: int) -> torch.Size:
        """Shape of the memory of a block, [2, H, 16, D]."""
        return self._layers[layer].shape[1:]

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copies blocks."""
        to, of = (torch.tensor(blocks, device=self._device) for blocks in (target, source))
        for held in self._layers.values():
            held[to] = held[of]


@dataclass(frozen=True)
class Growing:
    """Rows that get one more token each in a pass.

    Attributes:
        blocks: Their blocks, filled up by number 0, int64 [R, B].
        position: Position of their new token [R].
        widths: Number of blocks of each row.
    """

    blocks: Tensor
    position: Tensor
    widths: Sequence[int]


@dataclass(frozen=True)
class Continued:
    """Rows that get several tokens in a pass, behind some that are in blocks already.

    Attributes:
        blocks: Their blocks, with those of the new tokens [C, B].
        row: Row of each new token.
        position: Its position.
        first: Position of the first query that is computed: all new tokens come after it.
    """

    blocks: Tensor
    row: Tensor
    position: Tensor
    first: int

    @classmethod
    def of(cls, blocks: Tensor, known: Tensor, length: Tensor) -> Continued:
        """The rows of which so many tokens are known, of so many, both int64 [C] on the CPU."""
        tokens = Batch(torch.arange(int((length - known).sum())), length - known)
        first = int(known.min()) // QUERY_BLOCK * QUERY_BLOCK
        position = known[tokens.row] + tokens.position
        device = blocks.device
        return cls(blocks, tokens.row.to(device), position.to(device), first)


class Paged(KernelLayout):
    """The layout of one pass, whose N tokens are in this order: those of growing rows, of new rows, of continued ones.

    Args:
        pool: Where keys and values are kept.
        block_N: Block of each token.
        position_N: Position of each token in its row.
        growing: Rows with one token each, if there are any.
        fresh: Lengths of new rows, int64 on the CPU, if there are any.
        continued: Rows that continue what is known.
        multiple: Grids of new rows are as wide as a multiple of so many tokens.
    """

    def __init__(
        self,
        pool: Pool,
        block_N: Tensor,
        position_N: Tensor,
        growing: Growing | None,
        fresh: Tensor | None,
        continued: Continued | None,
        multiple: int,
    ) -> None:
        self._pool, self._block, self._offset = pool, block_N, position_N % BLOCK
        self._growing, self._continued = growing, continued
        self._num_growing = 0 if growing is None else len(growing.position)
        self._num_fresh = 0 if fresh is None else int(fresh.sum())
        self._packed = None
        if fresh is not None and len(fresh):
            tokens = torch.empty(self._num_fresh, dtype=torch.int64, device=block_N.device)
            self._packed = Packed.of(Batch(tokens, fresh), multiple)
        self._masks: dict[tuple[object, ...], Tensor] = {}
        self._places: dict[torch.Size, list[tuple[slice, Tensor]]] = {}

    def attend_by(
        self,
        kernel: Kernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        key_NHD, value_NHD = key[0].transpose(0, 1), value[0].transpose(0, 1)
        self._pool.write(layer, key_NHD, value_NHD, self._block, self._offset)
        parts = list[Tensor]()
        old, new = self._num_growing, self._num_growing + self._num_fresh
        if self._growing is not None:
            parts.append(self._grow(self._growing, kernel, layer, query[0, :, :old].transpose(0, 1), scaling, window))
        if self._packed is not None:
            q, k, v = (x[:, :, old:new] for x in (query, key, value))
            parts.append(self._packed.attend_by(kernel, layer, q, k, v, scaling, window)[0])
        if self._continued is not None:
            q = query[0, :, new:].transpose(0, 1)
            parts.append(self._continue(self._continued, kernel, layer, q, scaling, window))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None]

    def _grow(
        self, rows: Growing, kernel: Kernel, layer: int, query_RHD: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one new token of each row, some rows at a time [R, H, D]."""
        mask = self._mask(rows, kernel, window)
        parts = list[Tensor]()
        for some, place in self._chunks(rows, layer):
            key, value = self._pool.read(layer, place)
            parts.append(kernel.newest(query_RHD[some], key, value, mask[some, ..., : key.shape[2]], scaling))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chunks(self, rows: Growing, layer: int) -> list[tuple[slice, Tensor]]:
        """Rows that are computed together, and where their keys and values are; made once for layers of one shape."""
        shape = self._pool.shape(layer)
        if shape not in self._places:
            size = max(1, _CHUNK // (4 * shape.numel() * rows.blocks.shape[1]))
            starts = range(0, len(rows.widths), size)
            some = [(slice(start, start + size), max(rows.widths[start : start + size])) for start in starts]
            self._places[shape] = [(part, self._pool.places(layer, rows.blocks[part, :width])) for part, width in some]
        return self._places[shape]

    def _mask(self, rows: Growing, kernel: Kernel, window: int | None) -> Tensor:
        """The mask of a kernel, made once for all layers of a pass."""
        key = type(kernel), window
        if key not in self._masks:
            column = torch.arange(rows.blocks.shape[1] * BLOCK, device=rows.blocks.device)
            seen = column <= rows.position[:, None]
            if window is not None:
                seen &= column > rows.position[:, None] - window
            self._masks[key] = kernel.mask(seen)
        return self._masks[key]

    def _continue(
        self, rows: Continued, kernel: Kernel, layer: int, query_NHD: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of new tokens to those before them, known or new [N, H, D]."""
        key, value = self._pool.read(layer, self._pool.places(layer, rows.blocks))
        width = key.shape[2] - rows.first
        grid = query_NHD.new_zeros(len(rows.blocks), width, *query_NHD.shape[1:])
        place = rows.position - rows.first
        grid[rows.row, place] = query_NHD
        out = kernel.causal(grid.transpose(1, 2), key, value, scaling, window)
        return out.unflatten(0, (-1, width))[rows.row, place]
