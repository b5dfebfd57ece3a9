"""Keys and values in blocks of 16 tokens: of prompts, and of what may be continued. Rows that begin alike share blocks.

Letters: N tokens, R rows, B blocks of a row, H heads of keys, D size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.models.exact.attention import KEYS

BLOCK = KEYS
"""Tokens of a block."""


class Pool:
    """The memory of all blocks, [blocks, 2, H, 16, D] for each layer; made when a layer first writes to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._count = 0
        self.layers: dict[int, Tensor] = {}

    def resize(self, count: int) -> None:
        """Makes room for so many blocks, and keeps what is there."""
        if count > self._count:
            for layer, held in self.layers.items():
                self.layers[layer] = torch.cat([held, held.new_zeros(count - len(held), *held.shape[1:])])
            self._count = count

    def write(self, layer: int, key_NHD: Tensor, value_NHD: Tensor, block_N: Tensor, offset_N: Tensor) -> None:
        """Writes the keys and values of tokens to their blocks."""
        both = torch.stack([key_NHD, value_NHD], 1)
        if layer not in self.layers:
            _, _, heads, size = both.shape
            self.layers[layer] = both.new_zeros(self._count, 2, heads, BLOCK, size)
        self.layers[layer][block_N, :, :, offset_N] = both

    def read(self, layer: int, block_RB: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of rows, each [R, H, 16 · B, D]."""
        key, value = (
            self._rows(layer).index_select(0, self._places(layer, block_RB)).view(*self._shape(layer, block_RB))
        )
        return key, value

    def save(self, layer: int, block_RB: Tensor, key_RHTD: Tensor, value_RHTD: Tensor) -> None:
        """Writes the keys and values of rows to whole blocks."""
        both = torch.stack([key_RHTD, value_RHTD]).reshape(-1, self._rows(layer).shape[1])
        self._rows(layer).index_copy_(0, self._places(layer, block_RB), both)

    def _rows(self, layer: int) -> Tensor:
        """The keys, or values, of one head in one block, as a row."""
        return self.layers[layer].flatten(0, 2).flatten(1)

    def _places(self, layer: int, block_RB: Tensor) -> Tensor:
        """The rows of all heads of some blocks, of all keys first, then of all values."""
        heads = self.layers[layer].shape[2]
        key_RHB = block_RB[:, None] * (2 * heads) + torch.arange(heads, device=self._device)[:, None]
        return torch.stack([key_RHB, key_RHB + heads]).flatten()

    def _shape(self, layer: int, block_RB: Tensor) -> tuple[int, ...]:
        _, _, heads, _, size = self.layers[layer].shape
        return 2, len(block_RB), heads, BLOCK * block_RB.shape[1], size
