"""The prefix cache's bookkeeping of KV blocks: free, in use, and the tokens in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lockstep.samplers.torch.pool import BLOCK

_ROOT = 0
_FEWEST = 64
"""Minimum number of blocks to add: growing copies the whole pool."""

_PrefixKey = tuple[int, tuple[int, ...]]
"""Key of a cached block: the number of the prefix before it, and its tokens."""


def count_blocks(tokens: int) -> int:
    """Number of blocks for a number of tokens."""
    return -(-tokens // BLOCK)


class BlockAllocator:
    """Free and used blocks, by their numbers.

    Attributes:
        count: Number of blocks, free ones included.
        keep: Maximum number of cached blocks without users.
    """

    def __init__(self) -> None:
        self.count = self.keep = 0
        self._users: list[int] = []
        self._free: list[int] = []
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._contents: dict[_PrefixKey, tuple[int, int]] = {}
        self._known: dict[int, _PrefixKey] = {}
        self._newest = _ROOT

    def allocate_blocks(self, number: int) -> list[int]:
        """Allocates blocks.

        If too few are free, evicts cached ones beyond `keep`, oldest first, then adds new ones.
        """
        while len(self._free) < number and len(self._kept) > self.keep:
            self._evict_block(next(iter(self._kept)))
        if len(self._free) < number:
            self._add_blocks(max(number - len(self._free), _FEWEST, self.count // 2))
        taken = [self._free.pop() for _ in range(number)]
        for block in taken:
            self._users[block] = 1
        return taken

    def share_blocks(self, blocks: Sequence[int]) -> None:
        """Adds a user to each block."""
        for block in blocks:
            self._users[block] += 1
            self._kept.pop(block, None)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Removes a user from each block; a block with noted tokens stays cached for a while."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0 and block in self._known:
                self._kept[block] = None
            elif self._users[block] == 0:
                self._free.append(block)

    def find_prefix(self, tokens: tuple[int, ...]) -> list[int]:
        """Finds cached blocks of the longest prefix.

        The last token is left out, since its logits are needed.
        """
        content = _ROOT
        found = list[int]()
        for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
            entry = self._contents.get((content, tokens[start : start + BLOCK]))
            if entry is None:
                break
            content, block = entry
            found.append(block)
        return found

    def cache_prefix(self, tokens: tuple[int, ...], blocks: Sequence[int]) -> None:
        """Notes the tokens of some blocks; only full blocks are cached."""
        content = _ROOT
        for start, block in zip(
            range(0, len(tokens) // BLOCK * BLOCK, BLOCK), blocks, strict=False
        ):
            key = content, tokens[start : start + BLOCK]
            if key not in self._contents:
                self._newest += 1
                self._contents[key] = self._newest, block
                self._known[block] = key
            content, _ = self._contents[key]

    def _evict_block(self, block: int) -> None:
        """Frees a cached block.

        Blocks that continue it are no longer found: its prefix number is never reused.
        """
        del self._kept[block], self._contents[self._known.pop(block)]
        self._free.append(block)

    def _add_blocks(self, more: int) -> None:
        self._free += range(self.count + more - 1, self.count - 1, -1)
        self._users += [0] * more
        self.count += more
