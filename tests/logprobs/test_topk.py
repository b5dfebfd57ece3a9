from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Collectives, HostWaits, Layout, Ranks
from torch import Tensor

from lockstep_logprobs.shard import Shard
from lockstep_logprobs.topk import vocab_topk


def logits(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))).to(
        dtype
    )


def check(whole: Tensor, k: int, value: Tensor, token: Tensor) -> None:
    """The k largest by a full sort, and tokens that have these logits, none twice."""
    expected = whole.float().sort(-1, descending=True).values[:, :k]
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert torch.equal(whole.gather(-1, token).float(), value)
    assert all(len(set(row)) == len(row) for row in token.tolist())


WIDE = 16 * (8 * 5 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [7, WIDE - 1, WIDE, WIDE + 15, 4 * WIDE + 1])
@pytest.mark.parametrize("k", [1, 5])
def test_vocab_topk_matches_full_sort_for_narrow_and_wide_rows(
    k: int, columns: int, dtype: torch.dtype
) -> None:
    check(logits(9, columns, dtype), k, *vocab_topk(logits(9, columns, dtype), k))


def of_shard(layout: Layout, whole: Tensor, cuts: list[int], k: int) -> dict[str, Any]:
    start, end = cuts[layout.rank], cuts[layout.rank + 1]
    with Collectives() as collectives, HostWaits() as waits:
        value, token = vocab_topk(whole[:, start:end], k, Shard(start, layout.tp_group))
    return {
        "value": value,
        "token": token,
        "counts": dict(collectives.counts),
        "waits": waits.found,
    }


@pytest.mark.parametrize(
    ("cuts", "k"),
    [
        ([0, 50, 100], 7),
        ([0, 13, 77, 77, 100], 20),
        ([0, 3, 100], 90),
        ([0, 50, 100], 100),
        ([0, 30, 100], 300),
    ],
    ids=["even", "one-empty", "k-above-a-shard", "all", "k-above-all"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sharded_vocab_topk_matches_full_sort(
    ranks: Ranks, cuts: list[int], k: int, dtype: torch.dtype
) -> None:
    whole = logits(6, 100, dtype)
    whole[3, ::2] = -torch.inf
    whole[4] = -whole[4].abs()
    for found in ranks.run(of_shard, whole, cuts, k, tp=len(cuts) - 1):
        check(whole, min(k, 100), found["value"], found["token"])


def test_vocab_topk_ranks_choose_same_tokens_among_ties(ranks: Ranks) -> None:
    first, second = ranks.run(of_shard, torch.zeros(2, 100), [0, 50, 100], 7, tp=2)
    assert torch.equal(first["token"], second["token"])
    check(torch.zeros(2, 100), 7, first["value"], first["token"])
