"""Micro-batches by token budget, and their division among data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import torch

from lockstep.core.batch import Batch
from lockstep.models.prefixes import count_common, sort_paths

_ATTENTION = 1 / 4096
"""Cost of a pair of tokens in attention, relative to a token's other cost.

About right for 1,000 hidden units.
"""

MOST_KEYS = 4
"""Tokens of a pass's sequences, relative to its computed tokens: attention copies a shared prefix's
keys and values for each sequence.
"""


def pack_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing bin packing: longest first, each into the first bin with room.

    Args:
        lengths: Tokens per sequence.
        budget: Tokens per bin; a longer sequence gets its own bin.

    Returns:
        Bins of indices into `lengths`; every index occurs once.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    room = np.zeros(len(lengths), dtype=np.int64)
    bins: list[list[int]] = []
    for index in order:
        length = lengths[index]
        chosen = int((room[: len(bins)] >= length).argmax()) if bins else 0
        if bins and room[chosen] >= length:
            bins[chosen].append(index)
            room[chosen] -= length
        else:
            room[len(bins)] = max(budget - length, 0)
            bins.append([index])
    return bins


def cut_in_order(count: int, rows: int) -> list[list[int]]:
    """Splits `count` sequences, in order, into passes of `rows` each; the last may have fewer."""
    return [list(range(start, min(start + rows, count))) for start in range(0, count, rows)]


def deal_in_order(count: int, rows: int, ranks: int) -> list[list[list[int]]]:
    """Deals the passes of `cut_in_order` to ranks in turn; the last may be empty."""
    passes = cut_in_order(count, rows)
    most = -(-len(passes) // ranks)
    passes += [[] for _ in range(most * ranks - len(passes))]
    return [passes[rank::ranks] for rank in range(ranks)]


@dataclass(frozen=True)
class GroupFamily:
    """Groups of a batch that must share a pass because their common prompt is computed once.

    Attributes:
        groups: Numbers of the groups.
        lengths: Tokens of each group's sequences.
        alone: Distinct tokens of each group.
        added: An upper bound on the tokens of each group that the previous group lacks.
    """

    groups: tuple[int, ...]
    lengths: tuple[int, ...]
    alone: tuple[int, ...]
    added: tuple[int, ...]

    @property
    def computed_tokens(self) -> int:
        """Number of computed tokens."""
        return self.alone[0] + sum(self.added[1:])

    @property
    def budget_tokens(self) -> int:
        """Size in a pass's budget of computed tokens."""
        return max(self.computed_tokens, -(-sum(self.lengths) // MOST_KEYS))

    @property
    def compute_cost(self) -> float:
        """Cost of computing it, in tokens; attention grows with the square of each length."""
        return self.computed_tokens + _ATTENTION * self.computed_tokens * max(self.alone)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, members: slice) -> GroupFamily:
        return GroupFamily(
            self.groups[members], self.lengths[members], self.alone[members], self.added[members]
        )

    def __add__(self, other: GroupFamily) -> GroupFamily:
        return GroupFamily(
            self.groups + other.groups,
            self.lengths + other.lengths,
            self.alone + other.alone,
            self.added + other.added,
        )


def find_families(batch: Batch, budget: int, share_prefixes: bool) -> list[GroupFamily]:
    """Cuts a batch into families, in the order of the groups; without sharing, each group is one.

    Groups belong to the same family if their first sequences are equal up to the first masked token
    of either. A family is cut if its size exceeds the budget.
    """
    lengths = batch.group_lengths.tolist()
    if not share_prefixes:
        return [GroupFamily((group,), *[(size,)] * 3) for group, size in enumerate(lengths)]
    groups = list_paths(batch)
    prompts = count_prompts(batch)[:: batch.group_size].tolist()
    firsts = [group[0] for group in groups]
    order = sort_paths(firsts)
    alone = list(map(count_distinct, groups))
    families = list[GroupFamily]()
    previous = -1
    for group, known in zip(order, count_common(firsts, order), strict=True):
        size = (alone[group],)
        family = GroupFamily((group,), (lengths[group],), size, size)
        if previous >= 0 and known >= min(prompts[previous], prompts[group]):
            joined = families[-1] + replace(family, added=(alone[group] - known,))
            if joined.budget_tokens <= budget:
                family = joined
                families.pop()
        families.append(family)
        previous = group
    return sorted(families, key=lambda family: family.groups[0])


def list_paths(batch: Batch) -> list[list[np.ndarray]]:
    """The sequences of each group; of episodes with a rewritten history, their paths."""
    paths = batch.split_paths()
    group_P = batch.row.cpu()[paths.starts] // batch.group_size
    groups = [list[np.ndarray]() for _ in batch.group_lengths]
    for group, path in zip(group_P.tolist(), paths.sequences(), strict=True):
        groups[group].append(path.numpy())
    return groups


def count_prompts(batch: Batch) -> torch.Tensor:
    """Number of each sequence's tokens before the first masked one, int64 [B]."""
    if "mask" not in batch.token:
        return batch.lengths
    position = torch.where(batch.mask, batch.position, batch.lengths[batch.row])
    return batch.lengths.scatter_reduce(0, batch.row, position, "amin")


def count_distinct(rows: Sequence[np.ndarray]) -> int:
    """Number of tokens in some sequences, counting equal prefixes once."""
    return sum(map(len, rows)) - sum(count_common(rows, sort_paths(rows)))


def pack_families(families: Sequence[GroupFamily], budget: int) -> list[list[GroupFamily]]:
    """Packs families into passes of at most `budget` computed tokens, see `pack_bins`."""
    bins = pack_bins([family.budget_tokens for family in families], budget)
    return [[families[index] for index in bin] for bin in bins]


def list_groups(families: Sequence[GroupFamily]) -> list[int]:
    """The groups of a pass."""
    return [group for family in families for group in family.groups]


def deal_to_ranks(
    families: Sequence[GroupFamily], budget: int, ranks: int
) -> list[list[list[int]]]:
    """Packs families for ranks that make the same number of passes in lockstep.

    Each pass waits for the slowest rank. So bins of similar cost are computed in the same pass, and
    ranks take turns at the most expensive one. If the number of bins is not a multiple of the
    ranks, the most expensive bins are halved.

    Returns:
        For each rank its passes, as numbers of groups; a pass may be empty if a rank only joins the
        other ranks' collectives.
    """
    priced = [(estimate_cost(bin), bin) for bin in pack_families(families, budget)]
    while len(priced) % ranks:
        divisible = (one for one in priced if len(list_groups(one[1])) > 1)
        dearest = max(divisible, key=itemgetter(0), default=None)
        if dearest is None:
            priced.append((0.0, []))
            continue
        priced.remove(dearest)
        priced += [(estimate_cost(half), half) for half in halve_families(dearest[1])]
    bins = [bin for _, bin in sorted(priced, key=itemgetter(0), reverse=True)]
    rounds = [bins[start : start + ranks] for start in range(0, len(bins), ranks)]
    found: list[list[list[int]]] = []
    for rank in range(ranks):
        found.append([list_groups(one[(rank + turn) % ranks]) for turn, one in enumerate(rounds)])
    return found


def halve_families(
    families: list[GroupFamily],
) -> tuple[list[GroupFamily], list[GroupFamily]]:
    """Splits a pass in half; if that splits a family, both halves compute its prompt."""
    if len(families) > 1:
        return families[0::2], families[1::2]
    (family,) = families
    middle = (len(family) + 1) // 2
    return [family[:middle]], [family[middle:]]


def estimate_cost(families: Sequence[GroupFamily]) -> float:
    """Cost of a pass, in tokens."""
    return sum(family.compute_cost for family in families)
