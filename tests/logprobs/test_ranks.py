"""The tools of the sharded tests themselves: errors surface, counters count."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Collectives, Fetches, HostWaits, Layout, Ranks, RanksFailed
from torch import Tensor


def total(layout: Layout, number: float) -> tuple[float, dict[str, int], dict[str, int]]:
    """Sums over both groups; counts while it does, forward and backward."""
    value = torch.full((3,), number + layout.rank, requires_grad=True)
    with Collectives() as forward:
        result = Doubled.apply(value, layout)
    with Collectives() as backward:
        result.sum().backward()
    return result[0].item(), dict(forward.counts), dict(backward.counts)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, layout: Layout) -> Tensor:
        ctx.group = layout.tp_group
        value = value.clone()
        dist.all_reduce(value, group=layout.tp_group)
        dist.all_reduce(value, group=layout.cp_group)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        gradient = grad_outputs[0]
        parts = [torch.empty_like(gradient) for _ in range(ctx.group.size())]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)
        return torch.stack(parts).sum(0), None


def go_wrong(layout: Layout) -> None:
    """Rank 1 raises, rank 2 dies, and the others wait for them."""
    if layout.rank == 1:
        raise ValueError("this rank will not")
    if layout.rank == 2:
        os._exit(3)
    dist.all_reduce(torch.zeros(1), group=layout.tp_group)


def fail(layout: Layout) -> None:
    raise ValueError(f"rank {layout.rank} will not")


def tp_sums(layout: Layout) -> float:
    value = torch.tensor(float(layout.rank))
    dist.all_reduce(value, group=layout.tp_group)
    return value.item()


def waits() -> list[str]:
    value, mask, counts = torch.arange(3.0), torch.tensor([True, False, True]), torch.tensor([1, 2, 0])
    with HostWaits() as found, Fetches() as fetched:
        value[mask]
        value[0].item()
        mask.nonzero()
        value[counts]
        torch.repeat_interleave(value, counts, output_size=3)
        torch.repeat_interleave(value, counts)
        value.tolist()
    return found.found + fetched.found


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)])
def test_runs_on_every_layout_and_counts(ranks: Ranks, tp: int, cp: int) -> None:
    expected = (sum(range(tp * cp)) + 10.0 * tp * cp, {"allreduce": 2}, {"allgather": 1})
    assert ranks.run(total, 10.0, tp=tp, cp=cp) == [expected] * (tp * cp)


def test_tensor_parallel_ranks_are_neighbours(ranks: Ranks) -> None:
    assert ranks.run(tp_sums, tp=2, cp=2) == [1.0, 1.0, 5.0, 5.0]


def test_what_goes_wrong_on_a_rank_is_told_and_the_pool_starts_anew(ranks: Ranks) -> None:
    told = r"(?s)rank 1:.*go_wrong.*ValueError: this rank will not.*no answer from ranks \[.*2"
    with pytest.raises(RanksFailed, match=told):
        ranks.run(go_wrong, tp=4)
    assert ranks.run(tp_sums, tp=2) == [1.0, 1.0]


def test_errors_on_all_ranks_are_raised_together(ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"(?s)ValueError: rank 0 will not.*ValueError: rank 1 will not"):
        ranks.run(fail, tp=2)


def test_what_would_stop_the_host_is_named() -> None:
    # Without a size, repeat_interleave has to be told how long its result is.
    assert sorted(waits()) == sorted(["index", "_local_scalar_dense", "nonzero", "repeat_interleave", "tolist"])
