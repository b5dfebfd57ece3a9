"""The order in which gradients of blocks are added: one tree, in one process and over ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.learners.summing import GradientSum, _add_tree, order_blocks


def add(parts: list[Tensor], first: int = 0, step: int = 1) -> Tensor:
    """As the module says it, without a stack."""
    if first + step >= len(parts):
        return parts[first]
    return add(parts, first, 2 * step) + add(parts, first + step, 2 * step)


def total_of(parts: list[Tensor]) -> Tensor | None:
    found = GradientSum()
    steps = list(order_blocks(len(parts))) if parts else []
    assert sorted(block for block, _ in steps) == list(range(len(parts)))
    for block, additions in steps:
        found.add_block([parts[block].clone()], additions)
    total = found.take_total()
    return None if total is None else total[0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 12, 33])
def test_ranks_add_blocks_in_order_of_one_process(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    parts = list(torch.randn(count, 500, generator=draw))
    whole = total_of(parts)
    assert whole is not None
    assert torch.equal(whole, add(parts))
    torch.testing.assert_close(whole, torch.stack(parts).sum(0))
    for ranks in (2, 4, 8):
        totals = [total_of(parts[rank::ranks]) for rank in range(ranks)]
        has = [one is not None for one in totals]
        given = [torch.zeros(500) if one is None else one for one in totals]
        found = _add_tree(given, has)
        assert found is not None
        assert torch.equal(found, whole)
    if count > 2:
        assert not torch.equal(sum(parts[1:], parts[0]), whole), "any order gives the same"
