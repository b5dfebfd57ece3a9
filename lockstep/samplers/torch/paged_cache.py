"""The paged KV cache of prompts and of sequences that may be continued.

It has blocks of 16 tokens, which equal prefixes share.

Letters: N tokens, R rows (one per sequence), B blocks of a row, H heads of keys, T tokens of a row,
D size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.models.exact.attention import KEYS

BLOCK = KEYS
"""Tokens per block."""


class PagedKVCache:
    """All KV blocks: keys and values of each layer [blocks, H, 16, D], allocated lazily."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._count = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def grow_blocks(self, count: int) -> None:
        """Grows the memory to `count` blocks, and keeps their contents."""
        if count > self._count:
            self._count = count
            for layer, (keys, values) in self.layers.items():
                self.layers[layer] = self._enlarge_blocks(keys), self._enlarge_blocks(values)

    def write_tokens(
        self, layer: int, key_NHD: Tensor, value_NHD: Tensor, block_N: Tensor, offset_N: Tensor
    ) -> None:
        """Writes keys and values of tokens to their blocks."""
        if layer not in self.layers:
            self.layers[layer] = self._allocate_blocks(key_NHD), self._allocate_blocks(value_NHD)
        heads = key_NHD.shape[1]
        head_NH = block_N[:, None] * heads + torch.arange(heads, device=self.device)
        index_NH = head_NH * BLOCK + offset_N[:, None]
        for held, new_NHD in zip(self.layers[layer], (key_NHD, value_NHD), strict=True):
            held.flatten(0, 2).index_copy_(0, index_NH.flatten(), new_NHD.flatten(0, 1))

    def read_blocks(self, layer: int, block_RB: Tensor) -> tuple[Tensor, Tensor]:
        """Reads keys and values of rows, each [R, H, 16 · B, D]."""
        keys, values = self.layers[layer]
        return _gather_blocks(keys, block_RB), _gather_blocks(values, block_RB)

    def write_blocks(
        self, layer: int, block_RB: Tensor, key_RHTD: Tensor, value_RHTD: Tensor
    ) -> None:
        """Writes keys and values of rows to whole blocks."""
        for held, new_RHTD in zip(self.layers[layer], (key_RHTD, value_RHTD), strict=True):
            held.flatten(0, 1)[_head_indices(held, block_RB)] = new_RHTD.unflatten(
                2, (-1, BLOCK)
            ).flatten(0, 2)

    def _allocate_blocks(self, like_NHD: Tensor) -> Tensor:
        _, heads, size = like_NHD.shape
        return like_NHD.new_zeros(self._count, heads, BLOCK, size)

    def _enlarge_blocks(self, held: Tensor) -> Tensor:
        return torch.cat([held, held.new_zeros(self._count - len(held), *held.shape[1:])])


def _gather_blocks(held: Tensor, block_RB: Tensor) -> Tensor:
    found = held.view(held.shape[0] * held.shape[1], -1).index_select(
        0, _head_indices(held, block_RB)
    )
    return found.view(len(block_RB), held.shape[1], -1, held.shape[3])


def _head_indices(held: Tensor, block_RB: Tensor) -> Tensor:
    """Indices of the heads of some blocks, row by row, head by head."""
    heads = held.shape[1]
    return (block_RB[:, None] * heads + torch.arange(heads, device=held.device)[:, None]).flatten()
