"""The order of the likeliest tokens where ranks share the vocabulary."""

from __future__ import annotations

import torch
from ranks import Layout, Ranks
from torch import Tensor

from lockstep.distributed.sampling import likeliest
from lockstep_logprobs.shard import Shard


def likeliest_of_shard(layout: Layout, whole: Tensor, k: int) -> Tensor:
    start = 2 * layout.tp_rank
    return likeliest(whole[:, start : start + 2], k, Shard(start, layout.tp_group))[0]


def test_the_likeliest_come_first_unless_they_are_the_whole_vocabulary(ranks: Ranks) -> None:
    """Also where they are the tokens 0 to k − 1, as the whole vocabulary is, which is in the order of its ids."""
    whole = torch.tensor([[2.0, 3.0, 1.0, 0.0]])
    for k, expected in ((2, [[1, 0]]), (4, [[0, 1, 2, 3]]), (9, [[0, 1, 2, 3]])):
        for found in ranks.run(likeliest_of_shard, whole, k, tp=2):
            assert found.tolist() == expected
