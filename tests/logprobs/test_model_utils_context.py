"""The facade's functions that move tokens: zig-zag shares of a sequence, vocabulary shards to rows,
and back.
"""

from __future__ import annotations

import dense
import pytest
import torch
from ranks import Collectives, Layout, Ranks
from sharded import close, random
from torch import Tensor

from lockstep_logprobs import model_utils as facade


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("seq_dim", [0, 1, 2, -1])
def test_tokens_on_cp_rank_are_its_zigzag_chunks(size: int, seq_dim: int) -> None:
    tokens = torch.arange(16 * 16 * 16).view(16, 16, 16)
    for rank in range(size):
        positions = torch.tensor(dense.zigzag(16, size, rank) if size > 1 else list(range(16)))
        found = facade._get_tokens_on_this_cp_rank(tokens, rank, size, seq_dim)
        assert torch.equal(found, tokens.index_select(seq_dim, positions))


Gathered = tuple[Tensor, Tensor, Tensor, int, int]


def gather(
    layout: Layout, whole: Tensor, upstream: Tensor, seq_dim: int, by_class: bool
) -> Gathered:
    """The gathered tensor, the gradient of this rank's share, its positions, and the counts of
    collectives.
    """
    positions = torch.tensor(dense.zigzag(whole.shape[seq_dim], layout.cp, layout.cp_rank))
    share = whole.index_select(seq_dim, positions).requires_grad_()
    function = facade.AllGatherCPTensor.apply if by_class else facade.allgather_cp_sharded_tensor
    with Collectives() as forward:
        found = function(share, layout.cp_group, seq_dim)
    mine = upstream * (1 + layout.cp_rank)
    with Collectives() as backward:
        found.backward(mine)
    assert torch.equal(mine, upstream * (1 + layout.cp_rank)), (
        "the caller's gradient is overwritten"
    )
    assert share.grad is not None
    return found.detach(), share.grad, positions, forward.counts.total(), backward.counts.total()


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("seq_dim", [0, 1, 2])
@pytest.mark.parametrize("by_class", [True, False])
def test_cp_allgather_restores_sequence_and_sums_gradients_of_all_ranks(
    ranks: Ranks, cp: int, seq_dim: int, by_class: bool
) -> None:
    whole, upstream = random(8, 16, 24), random(8, 16, 24, seed=1)
    for found, gradient, positions, forward, backward in ranks.run(
        gather, whole, upstream, seq_dim, by_class, cp=cp
    ):
        assert torch.equal(found, whole)
        ranks_sum = sum(range(1, cp + 1))
        close(gradient, ranks_sum * upstream.index_select(seq_dim, positions))
        assert (forward, backward) == (1, 1)


# Vocabulary shards of all rows to all columns of some rows.
# ----------------------------------------------------------


def there_and_back(layout: Layout, logits: Tensor) -> tuple[Tensor, Tensor]:
    rows = facade.all_to_all_vp2sq(logits.chunk(layout.tp, 1)[layout.tp_rank], layout.tp_group)
    return rows, facade.all_to_all_sq2vp(rows, layout.tp_group)


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_all_to_all_vp2sq_and_sq2vp_are_inverse_and_keep_dtype(
    ranks: Ranks, tp: int, dtype: torch.dtype
) -> None:
    logits = torch.arange(8 * 12).view(8, 12).to(dtype)
    for rank, (rows, columns) in enumerate(ranks.run(there_and_back, logits, tp=tp)):
        assert torch.equal(rows, logits.chunk(tp, 0)[rank])
        assert torch.equal(columns, logits.chunk(tp, 1)[rank])
        assert rows.dtype == columns.dtype == dtype
