from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Collectives, HostWaits, Layout, Ranks
from torch import Tensor

from lockstep_logprobs.collectives import GradientMode
from lockstep_logprobs.context import gather, take, zigzag_positions


def shares(x: Tensor, size: int, dim: int) -> list[Tensor]:
    """What each rank holds, by cutting into chunks and dealing them out one by one."""
    chunks = torch.split(x, x.shape[dim] // (2 * size), dim)
    return [torch.cat([chunks[r], chunks[2 * size - 1 - r]], dim) for r in range(size)]


def there_and_back(
    layout: Layout, x: Tensor, dim: int, gradient: GradientMode, upstream: Tensor
) -> dict[str, Any]:
    x = x.clone().requires_grad_()
    before = upstream.clone()
    with Collectives() as collectives, HostWaits() as waits:
        share = take(x, layout.cp_group, dim)
        held = share.detach().requires_grad_()
        whole = gather(held, layout.cp_group, dim, gradient)
        forward = dict(collectives.counts)
        whole.backward((layout.cp_rank + 1) * upstream)
        share.backward(upstream.narrow(dim, 0, share.shape[dim]))
    return {
        "share": held.detach(),
        "whole": whole.detach(),
        "held_grad": held.grad,
        "grad": x.grad,
        "forward": forward,
        "backward": dict(collectives.counts - type(collectives.counts)(forward)),
        "waits": waits.found,
        "kept": torch.equal(before, upstream),
    }


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_zigzag_split_gives_cp_ranks_equal_attention_work(size: int) -> None:
    held = zigzag_positions(24, size)
    assert [row.tolist() for row in held] == [
        share.tolist() for share in shares(torch.arange(24), size, 0)
    ]
    work = (held + 1).sum(1)  # a position attends to itself and all before it
    assert (work == work[0]).all()


@pytest.mark.parametrize("gradient", ["sum", "local"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_cp_gather_inverts_take_and_backpropagates_summed_or_local_gradient(
    ranks: Ranks, size: int, dim: int, gradient: GradientMode
) -> None:
    x, upstream = torch.randn(2, 16, 8, 24, generator=torch.Generator().manual_seed(0))
    found = ranks.run(there_and_back, x, dim, gradient, upstream, cp=size)
    factors = [size * (size + 1) / 2] * size if gradient == "sum" else range(1, size + 1)
    for rank, factor in enumerate(factors):
        got = found[rank]
        assert torch.equal(got["share"], shares(x, size, dim)[rank] if size > 1 else x)
        assert torch.equal(got["whole"], x)
        expected = shares(upstream, size, dim)[rank] if size > 1 else upstream
        torch.testing.assert_close(got["held_grad"], factor * expected)
        assert got["kept"]
        assert got["waits"] == []
