"""Allocation of the paged cache's KV blocks: free, in use, or cached for a later prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lockstep.samplers.torch.paged_cache import BLOCK

_ROOT = 0
_MIN_GROWTH = 64
"""Minimum number of blocks to add: growing copies the whole cache."""

_PrefixKey = tuple[int, tuple[int, ...]]
"""Key of a cached block: the number of the prefix before it, and its tokens."""


def count_blocks(tokens: int) -> int:
    """Number of blocks for a number of tokens."""
    return -(-tokens // BLOCK)


class BlockAllocator:
    """Allocates KV blocks by number.

    Attributes:
        count: Number of blocks, free ones included.
        max_cached: Maximum number of cached blocks without users.
    """

    def __init__(self) -> None:
        self.count = 0
        self.max_cached = 0
        self._users: list[int] = []
        self._free: list[int] = []
        self._unused_cached: OrderedDict[int, None] = OrderedDict()
        self._cached_prefixes: dict[_PrefixKey, tuple[int, int]] = {}
        self._key_of_block: dict[int, _PrefixKey] = {}
        self._newest_prefix = _ROOT

    def allocate_blocks(self, number: int) -> list[int]:
        """Allocates blocks.

        If too few are free, evicts cached ones beyond `max_cached`, oldest first, then adds new
        ones.
        """
        while len(self._free) < number and len(self._unused_cached) > self.max_cached:
            oldest, _ = self._unused_cached.popitem(last=False)
            # Blocks that continue it are no longer found, since its prefix number is never reused.
            del self._cached_prefixes[self._key_of_block.pop(oldest)]
            self._free.append(oldest)
        if len(self._free) < number:
            growth = max(number - len(self._free), _MIN_GROWTH, self.count // 2)
            self._free += range(self.count + growth - 1, self.count - 1, -1)
            self._users += [0] * growth
            self.count += growth
        allocated = [self._free.pop() for _ in range(number)]
        for block in allocated:
            self._users[block] = 1
        return allocated

    def share_blocks(self, blocks: Sequence[int]) -> None:
        """Adds a user to each block."""
        for block in blocks:
            self._users[block] += 1
            self._unused_cached.pop(block, None)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Removes a user from each block; an unused block of a cached prefix stays cached."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0 and block in self._key_of_block:
                self._unused_cached[block] = None
            elif self._users[block] == 0:
                self._free.append(block)

    def find_prefix(self, tokens: tuple[int, ...]) -> list[int]:
        """Finds cached blocks of the longest prefix.

        The last token is left out, since its logits are needed.
        """
        prefix = _ROOT
        found = list[int]()
        for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
            entry = self._cached_prefixes.get((prefix, tokens[start : start + BLOCK]))
            if entry is None:
                break
            prefix, block = entry
            found.append(block)
        return found

    def cache_prefix(self, tokens: tuple[int, ...], blocks: Sequence[int]) -> None:
        """Caches blocks under their tokens; only full blocks are cached."""
        prefix = _ROOT
        for start, block in zip(
            range(0, len(tokens) // BLOCK * BLOCK, BLOCK), blocks, strict=False
        ):
            key = prefix, tokens[start : start + BLOCK]
            if key not in self._cached_prefixes:
                self._newest_prefix += 1
                self._cached_prefixes[key] = self._newest_prefix, block
                self._key_of_block[block] = key
            prefix, _ = self._cached_prefixes[key]
