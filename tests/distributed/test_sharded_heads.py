"""Exact heads over tensor-parallel ranks: every score has the bits of one process."""

from __future__ import annotations

import pytest
import torch
from ranks import Layout, Ranks
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep.distributed.penalties import EarlierTokens
from lockstep.models.heads import LogitProducts
from lockstep_logprobs.shard import WHOLE, Shard

M, V, D = 11, 2070, 16
BOUNDS = (0, 1035, V)
EARLIER = EarlierTokens(
    torch.tensor([0, 3, 3]), torch.tensor([5, 2069, 7]), torch.tensor([1, 2, 0])
)
SAMPLINGS = {
    "plain": SamplingParams(1, 0.7),
    "filters": SamplingParams(1, 0.8, top_k=50, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        1, 1.3, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    ),
}


def compute_scores(head: LogitProducts, token: Tensor, sampling: SamplingParams) -> list[Tensor]:
    """Scores of sampled, of the likeliest, and of all tokens, with entropies."""
    earlier = EARLIER if sampling.penalizes else None
    found = [*head.score_tokens(token, sampling, True, earlier)]
    found += [head.find_likeliest(k)[1] for k in (5, V)]
    every = torch.arange(V).expand(M, -1)
    found += head.score_tokens(every, SamplingParams(1), True, None)
    return [x for x in found if x is not None]


def score_on_rank(
    layout: Layout, hidden: Tensor, weight: Tensor, token: Tensor, sampling: SamplingParams
) -> list[Tensor]:
    start, end = BOUNDS[layout.tp_rank : layout.tp_rank + 2]
    head = LogitProducts(hidden, weight[start:end], Shard(start, layout.tp_group), exact=True)
    return compute_scores(head, token, sampling)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_exact_head_over_ranks_scores_like_one_process_bit_for_bit(ranks: Ranks, name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(M, D, generator=draw), torch.randn(V, D, generator=draw)
    token = torch.randint(V, (M,), generator=draw)
    whole = compute_scores(LogitProducts(hidden, weight, WHOLE, exact=True), token, SAMPLINGS[name])
    assert len(whole) == 6
    for own in ranks.run(score_on_rank, hidden, weight, token, SAMPLINGS[name], tp=2):
        for found, expected in zip(own, whole, strict=True):
            assert torch.equal(found, expected)
