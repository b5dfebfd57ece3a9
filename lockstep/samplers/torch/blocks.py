"""Accounts of the blocks of a pool: which are free, which belong to prompts, and which are known by their tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lockstep.models.pool import BLOCK

_ROOT = 0
_FEWEST = 64
"""Blocks that are added at once, at least: growing copies all that is kept."""

_Known = tuple[int, tuple[int, ...]]
"""Key of a known block: the number of the content before it, and its own tokens."""


def count_blocks(tokens: int) -> int:
    """Number of blocks that hold so many tokens."""
    return -(-tokens // BLOCK)


class Blocks:
    """Free and taken blocks, by their numbers.

    Attributes:
        count: Number of blocks, free ones among them.
        keep: Number of blocks without users that stay known, at most, before their memory is used again.
    """

    def __init__(self) -> None:
        self.count = self.keep = 0
        self._users: list[int] = []
        self._free: list[int] = []
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._contents: dict[_Known, tuple[int, int]] = {}
        self._known: dict[int, _Known] = {}
        self._newest = _ROOT

    def take(self, number: int) -> list[int]:
        """Takes free blocks, or those that are known for longest, or new ones."""
        while len(self._free) < number and len(self._kept) > self.keep:
            self._forget(next(iter(self._kept)))
        if len(self._free) < number:
            self._grow(max(number - len(self._free), _FEWEST, self.count // 2))
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
        """Takes a user from each block; those that are known by their tokens stay known for a while."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0 and block in self._known:
                self._kept[block] = None
            elif self._users[block] == 0:
                self._free.append(block)

    def find(self, tokens: tuple[int, ...]) -> list[int]:
        """Finds blocks that hold the beginning of some tokens, but never the last of them, whose logits are wanted."""
        content, found = _ROOT, list[int]()
        for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
            entry = self._contents.get((content, tokens[start : start + BLOCK]))
            if entry is None:
                break
            content, block = entry
            found.append(block)
        return found

    def remember(self, tokens: tuple[int, ...], blocks: Sequence[int]) -> None:
        """Notes which tokens the full ones of some blocks hold."""
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

    def _grow(self, more: int) -> None:
        self._free += range(self.count + more - 1, self.count - 1, -1)
        self._users += [0] * more
        self.count += more
