"""The dense KV cache of running sequences, which attention reads in place.

Sequences of similar length share a buffer, in which each has a row of the same capacity. A sequence
that fills its row moves to the next larger buffer, and when a sequence ends, the last one of its
buffer takes its row.

Letters: R rows, B blocks, H heads of keys, T tokens, D size of a head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from lockstep.samplers.torch.paged_cache import BLOCK, PagedKVCache

_MIN_CAPACITY = 64
_MIN_GROWTH = 8
"""Minimum number of rows to grow a buffer by."""


@dataclass(eq=False)
class KVBuffer:
    """Keys and values of sequences whose rows have the same capacity.

    Attributes:
        capacity: Tokens per row.
        slots: Slot of each row's sequence.
        size: Number of allocated rows.
        longest: Tokens of its longest sequence; the scheduler updates it.
        layers: Keys and values of each layer, two of [size, H, capacity, D].
    """

    capacity: int
    slots: list[int] = field(default_factory=list)
    size: int = 0
    longest: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add_sequences(self, slots: Sequence[int]) -> slice:
        """Adds sequences. Returns their rows."""
        rows = slice(len(self.slots), len(self.slots) + len(slots))
        self.slots += slots
        if len(self.slots) > self.size:
            self.size = max(len(self.slots) + -len(self.slots) % _MIN_GROWTH, self.size * 5 // 4)
            for layer, (keys, values) in self.layers.items():
                self.layers[layer] = self._enlarge(keys), self._enlarge(values)
        return rows

    def write_prefixes(self, layer: int, rows: slice, key_RHTD: Tensor, value_RHTD: Tensor) -> None:
        """Writes the first tokens of some rows."""
        if layer not in self.layers:
            self.layers[layer] = self._allocate(key_RHTD), self._allocate(value_RHTD)
        for held, new in zip(self.layers[layer], (key_RHTD, value_RHTD), strict=True):
            held[rows, :, : new.shape[2]] = new

    def remove_sequences(self, slots: Iterable[int]) -> None:
        """Removes sequences; the last ones take their rows."""
        removed = set(slots)
        left = sum(slot not in removed for slot in self.slots)
        holes = [row for row in range(left) if self.slots[row] in removed]
        moved = [row for row in range(left, len(self.slots)) if self.slots[row] not in removed]
        for hole, row in zip(holes, moved, strict=True):
            self.slots[hole] = self.slots[row]
        del self.slots[left:]
        if holes:
            for held in chain.from_iterable(self.layers.values()):
                held[torch.tensor(holes)] = held[torch.tensor(moved)]

    def _allocate(self, like_RHTD: Tensor) -> Tensor:
        _, heads, _, size = like_RHTD.shape
        return like_RHTD.new_zeros(self.size, heads, self.capacity, size)

    def _enlarge(self, held: Tensor) -> Tensor:
        return torch.cat([held, held.new_zeros(self.size - len(held), *held.shape[1:])])


class DenseKVCache:
    """The KV buffers of all running sequences, which are known by their slots.

    Args:
        context: Maximum tokens per sequence.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        self._buffers: dict[int, KVBuffer] = {}

    @property
    def occupied_buffers(self) -> list[KVBuffer]:
        """Buffers with sequences, in the order of a pass."""
        return [buffer for _, buffer in sorted(self._buffers.items())]

    def row_capacity(self, tokens: int) -> int:
        """Row size for a sequence of `tokens` tokens: 64, 96, 128, 192, 256, …, the context."""
        power = max(_MIN_CAPACITY, 1 << (tokens - 1).bit_length())
        if tokens <= _MIN_CAPACITY or tokens > power * 3 // 4:
            capacity = power
        else:
            capacity = power * 3 // 4
        return min(capacity, self._context + -self._context % BLOCK)

    @property
    def allocated_tokens(self) -> int:
        """Total capacity of the sequences' rows, in tokens."""
        return sum(buffer.capacity * len(buffer.slots) for buffer in self._buffers.values())

    def add_sequences(
        self,
        slots: Sequence[int],
        blocks: Sequence[Sequence[int]],
        lengths: Sequence[int],
        paged: PagedKVCache,
    ) -> None:
        """Adds sequences of `lengths` tokens; copies their keys and values from blocks."""
        alike = defaultdict[int, defaultdict[int, list[int]]](lambda: defaultdict(list))
        for index, length in enumerate(lengths):
            alike[self.row_capacity(length + 1)][len(blocks[index])].append(index)
        for capacity, by_blocks in alike.items():
            buffer = self._buffers.setdefault(capacity, KVBuffer(capacity))
            indices = chain.from_iterable(by_blocks.values())
            start = buffer.add_sequences([slots[index] for index in indices]).start
            for some in by_blocks.values():
                rows = slice(start, start := start + len(some))
                block_RB = torch.tensor([blocks[index] for index in some], device=paged.device)
                for layer in paged.layers:
                    buffer.write_prefixes(layer, rows, *paged.read_blocks(layer, block_RB))

    def remove_sequences(self, slots: Iterable[int]) -> None:
        """Removes sequences."""
        removed = set(slots)
        for buffer in self.occupied_buffers:
            self._remove_from_buffer(buffer, removed)

    def move_sequences(self, buffer: KVBuffer, rows: Sequence[int]) -> None:
        """Moves the sequences in some rows of a buffer to the next larger buffer."""
        capacity = self.row_capacity(buffer.capacity + 1)
        larger = self._buffers.setdefault(capacity, KVBuffer(capacity))
        slots = [buffer.slots[row] for row in rows]
        source = torch.tensor(rows)
        target = larger.add_sequences(slots)
        for layer, (keys, values) in buffer.layers.items():
            larger.write_prefixes(layer, target, keys[source], values[source])
        self._remove_from_buffer(buffer, slots)

    def save_sequence(
        self, slot: int, blocks: Sequence[int], num_cached: int, paged: PagedKVCache
    ) -> None:
        """Copies a sequence's beginning to blocks, except the first `num_cached`."""
        buffer = next(buffer for buffer in self._buffers.values() if slot in buffer.slots)
        row = buffer.slots.index(slot)
        tokens = slice(BLOCK * num_cached, BLOCK * len(blocks))
        block_RB = torch.tensor([blocks[num_cached:]], dtype=torch.int64, device=paged.device)
        for layer, (keys, values) in buffer.layers.items() if len(blocks) > num_cached else ():
            paged.write_blocks(
                layer, block_RB, keys[row, None, :, tokens], values[row, None, :, tokens]
            )

    def _remove_from_buffer(self, buffer: KVBuffer, slots: Iterable[int]) -> None:
        buffer.remove_sequences(slots)
        if not buffer.slots:
            del self._buffers[buffer.capacity]
