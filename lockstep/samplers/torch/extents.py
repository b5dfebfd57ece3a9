"""The dense KV cache of running rows, which attention reads in place.

Rows of similar length lie side by side in an arena, where each has a slot of the same number of
tokens. A row that fills its slot moves to the next larger arena, and when a row ends, the last row
of its arena takes its slot.

Letters: R rows, B blocks, H heads of keys, T tokens, D size of a head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lockstep.samplers.torch.pool import BLOCK, PagedKVCache

_SMALLEST = 64
_ROWS = 8
"""Minimum number of rows to grow an arena by."""


@dataclass(eq=False)
class KVArena:
    """Rows with slots of the same number of tokens.

    Attributes:
        room: Tokens per slot.
        rows: Numbers of its rows.
        size: Number of allocated slots.
        filled: Tokens of its longest row; the scheduler updates it.
        layers: Keys and values of each layer, two of [size, H, room, D].
    """

    room: int
    rows: list[int] = field(default_factory=list)
    size: int = 0
    filled: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add_rows(self, rows: Sequence[int]) -> slice:
        """Adds rows. Returns their slots."""
        places = slice(len(self.rows), len(self.rows) + len(rows))
        self.rows += rows
        if len(self.rows) > self.size:
            self.size = max(len(self.rows) + -len(self.rows) % _ROWS, self.size * 5 // 4)
            for layer, (keys, values) in self.layers.items():
                self.layers[layer] = self._enlarge_slots(keys), self._enlarge_slots(values)
        return places

    def write_prefixes(
        self, layer: int, places: slice, key_RHTD: Tensor, value_RHTD: Tensor
    ) -> None:
        """Writes the first tokens of rows."""
        if layer not in self.layers:
            self.layers[layer] = self._allocate_slots(key_RHTD), self._allocate_slots(value_RHTD)
        for held, new in zip(self.layers[layer], (key_RHTD, value_RHTD), strict=True):
            held[places, :, : new.shape[2]] = new

    def remove_rows(self, rows: Iterable[int]) -> None:
        """Removes rows; the last ones take their slots."""
        gone = set(rows)
        left = sum(row not in gone for row in self.rows)
        holes = [place for place in range(left) if self.rows[place] in gone]
        moved = [place for place in range(left, len(self.rows)) if self.rows[place] not in gone]
        for hole, place in zip(holes, moved, strict=True):
            self.rows[hole] = self.rows[place]
        del self.rows[left:]
        if holes:
            for held in (held for layer in self.layers.values() for held in layer):
                held[torch.tensor(holes)] = held[torch.tensor(moved)]

    def _allocate_slots(self, like_RHTD: Tensor) -> Tensor:
        _, heads, _, size = like_RHTD.shape
        return like_RHTD.new_zeros(self.size, heads, self.room, size)

    def _enlarge_slots(self, held: Tensor) -> Tensor:
        return torch.cat([held, held.new_zeros(self.size - len(held), *held.shape[1:])])


class DenseKVCache:
    """The arenas of all running rows; the scheduler numbers the rows.

    Args:
        context: Maximum tokens per row.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        self._arenas: dict[int, KVArena] = {}

    @property
    def occupied_arenas(self) -> list[KVArena]:
        """Arenas with rows, in the order of a pass."""
        return [arena for _, arena in sorted(self._arenas.items())]

    def slot_length(self, tokens: int) -> int:
        """Slot size for a row of `tokens` tokens: 64, 96, 128, 192, 256, …, the context."""
        power = max(_SMALLEST, 1 << (tokens - 1).bit_length())
        if tokens <= _SMALLEST or tokens > power * 3 // 4:
            room = power
        else:
            room = power * 3 // 4
        return min(room, self._context + -self._context % BLOCK)

    @property
    def allocated_tokens(self) -> int:
        """Total size of the rows' KV slots, in tokens."""
        return sum(arena.room * len(arena.rows) for arena in self._arenas.values())

    def add_rows(
        self,
        rows: Sequence[int],
        blocks: Sequence[Sequence[int]],
        lengths: Sequence[int],
        pool: PagedKVCache,
    ) -> None:
        """Adds rows of `lengths` tokens, and copies their keys and values from a pool's blocks."""
        alike = defaultdict[int, defaultdict[int, list[int]]](lambda: defaultdict(list))
        for index, length in enumerate(lengths):
            alike[self.slot_length(length + 1)][len(blocks[index])].append(index)
        for room, by_blocks in alike.items():
            arena = self._arenas.setdefault(room, KVArena(room))
            start = arena.add_rows(
                [rows[index] for some in by_blocks.values() for index in some]
            ).start
            for some in by_blocks.values():
                places = slice(start, start := start + len(some))
                block_RB = torch.tensor([blocks[index] for index in some], device=pool.device)
                for layer in pool.layers:
                    arena.write_prefixes(layer, places, *pool.read_blocks(layer, block_RB))

    def remove_rows(self, rows: Iterable[int]) -> None:
        """Removes rows."""
        gone = set(rows)
        for arena in self.occupied_arenas:
            self._remove_from_arena(arena, gone)

    def move_rows(self, arena: KVArena, places: Sequence[int]) -> None:
        """Moves the rows in some slots of an arena to the next arena."""
        room = self.slot_length(arena.room + 1)
        larger = self._arenas.setdefault(room, KVArena(room))
        rows = [arena.rows[place] for place in places]
        of = torch.tensor(places)
        to = larger.add_rows(rows)
        for layer, (keys, values) in arena.layers.items():
            larger.write_prefixes(layer, to, keys[of], values[of])
        self._remove_from_arena(arena, rows)

    def save_row(self, row: int, blocks: Sequence[int], known: int, pool: PagedKVCache) -> None:
        """Copies the beginning of a row to blocks of a pool, skipping the first `known` blocks."""
        arena = next(arena for arena in self._arenas.values() if row in arena.rows)
        place = arena.rows.index(row)
        tokens = slice(BLOCK * known, BLOCK * len(blocks))
        block_RB = torch.tensor([blocks[known:]], dtype=torch.int64, device=pool.device)
        for layer, (keys, values) in arena.layers.items() if len(blocks) > known else ():
            pool.write_blocks(
                layer, block_RB, keys[place, None, :, tokens], values[place, None, :, tokens]
            )

    def _remove_from_arena(self, arena: KVArena, rows: Iterable[int]) -> None:
        arena.remove_rows(rows)
        if not arena.rows:
            del self._arenas[arena.room]
