"""Accounts of the blocks that keys and values are kept in: free ones, those of rows, and those whose tokens may return.

A block holds the keys and values of 16 tokens in all layers. Blocks that are full can be shared by rows that begin
alike, and stay known by their tokens after their rows have ended, as long as nobody needs the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lockstep.models.paged import BLOCK

_ROOT = 0
_FEWEST = 64
"""Blocks that are added at once, at least: growing copies all that is kept."""

_Known = tuple[int, tuple[int, ...]]
"""What a block is known by: the number of the block's content before it, and its own tokens."""


def count_blocks(tokens: int) -> int:
    """Number of blocks that hold so many tokens."""
    return -(-tokens // BLOCK)


class Blocks:
    """Free and taken blocks, by their numbers; number 0 is nobody's.

    Args:
        most: Number of blocks that memory allows; None: as many as rows need.

    Attributes:
        count: Number of blocks there are, free ones among them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.count = 1
        self._users = [1]
        self._free: list[int] = []
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._contents: dict[_Known, tuple[int, int]] = {}
        self._known: dict[int, _Known] = {}
        self._newest = _ROOT

    @property
    def in_use(self) -> int:
        """Number of blocks that rows use."""
        return self.count - 1 - len(self._free) - len(self._kept)

    def take(self, number: int, beyond: bool = False) -> list[int] | None:
        """Takes free blocks; None if there are too few, unless it may go beyond what memory allows."""
        while len(self._free) < number:
            lacking = number - len(self._free)
            room = lacking if self._most is None or beyond else self._most - self.count
            if self._kept and (len(self._kept) > self.in_use or room < lacking):
                self._forget(next(iter(self._kept)))
            elif room >= lacking:
                self._grow(lacking)
            else:
                return None
        taken = [self._free.pop() for _ in range(number)]
        for block in taken:
            self._users[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a user to each block."""
        for block in blocks:
            self._users[block] += 1
            self._kept.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """Takes a user from each block; those that are known by their tokens are kept."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0 and block in self._known:
                self._kept[block] = None
            elif self._users[block] == 0:
                self._free.append(block)

    def find(self, tokens: tuple[int, ...]) -> list[int]:
        """Finds blocks that hold the beginning of some tokens, never the last of them, whose logits are wanted."""
        content, found = _ROOT, list[int]()
        for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
            entry = self._contents.get((content, tokens[start : start + BLOCK]))
            if entry is None:
                break
            content, block = entry
            found.append(block)
        return found

    def remember(self, tokens: tuple[int, ...], blocks: Sequence[int]) -> None:
        """Notes which tokens the full ones of a row's blocks hold."""
        content = _ROOT
        for start, block in zip(range(0, len(tokens) // BLOCK * BLOCK, BLOCK), blocks, strict=False):
            key = content, tokens[start : start + BLOCK]
            if key not in self._contents:
                self._newest += 1
                self._contents[key] = self._newest, block
                self._known[block] = key
            content, _ = self._contents[key]

    def _forget(self, block: int) -> None:
        """Frees a block without users. What followed it is found no more, since its content's number never returns."""
        del self._kept[block], self._contents[self._known.pop(block)]
        self._free.append(block)

    def _grow(self, lacking: int) -> None:
        more = max(lacking, _FEWEST, self.count // 2)
        if self._most is not None:
            more = max(lacking, min(more, self._most - self.count))
        self._free += range(self.count + more - 1, self.count - 1, -1)
        self._users += [0] * more
        self.count += more
