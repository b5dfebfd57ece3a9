"""What is handed to the sharded functions by mistake is named in one sentence, on one process and
over ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ranks import Layout, Ranks, RanksFailed

from lockstep_logprobs import model_utils as facade
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.shard import Shard
from lockstep_logprobs.softmax import Scoring
from lockstep_logprobs.support import support_floor
from lockstep_logprobs.vocab import vocab_logprobs

LOGITS, TOKEN, IDS = (
    torch.randn(6, 8),
    torch.zeros(6, 1, dtype=torch.int64),
    torch.zeros(2, 3, dtype=torch.int64),
)
GRID = LOGITS.view(2, 3, 8)

MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a grid of logits": (
        lambda: vocab_logprobs(GRID, TOKEN),
        r"rows .* \[M, v\], not float32 \[2, 3, 8\]",
    ),
    "integer logits": (
        lambda: vocab_logprobs(TOKEN, TOKEN),
        r"floating-point rows .*, not int64 \[6, 1\]",
    ),
    "a list of tokens": (
        lambda: vocab_logprobs(LOGITS, TOKEN[:, 0]),
        r"not int64 \[6\]; .* pass token\[:, None\]",
    ),
    "float tokens": (
        lambda: vocab_logprobs(LOGITS, TOKEN.float()),
        r"integers \[M, K\], .* not float32 \[6, 1\]",
    ),
    "too few tokens": (
        lambda: vocab_logprobs(LOGITS, TOKEN[:5]),
        r"each of the 6 rows .* not int64 \[5, 1\]",
    ),
    "one floor": (
        lambda: vocab_logprobs(LOGITS, TOKEN, floor_M=torch.zeros(1)),
        r"one number per row, \[6\]",
    ),
    "two sampled tokens": (
        lambda: vocab_logprobs(
            LOGITS, IDS.view(3, 2).repeat(2, 1), Scoring(sampled=True), LOGITS.amax(-1)
        ),
        r"token per row \[M, 1\], not int64 \[6, 2\]; score other tokens without sampled",
    ),
    "a head of another width": (
        lambda: hidden_logprobs(LOGITS, torch.zeros(5, 7), TOKEN),
        r"\[M, D\] .* \[v, D\], not float32 \[6, 8\] and float32 \[5, 7\]",
    ),
    "a shard without its group": (
        lambda: vocab_logprobs(LOGITS, TOKEN, Scoring(shard=Shard(8))),
        "a start but no group",
    ),
    "a group by name": (
        lambda: Shard(0, "tp"),  # pyright: ignore[reportArgumentType]
        "process group of this rank, not 'tp'",
    ),
    "no temperature": (
        lambda: Scoring(temperature=0.0),
        "temperature is 0.0, but must be positive",
    ),
    "a floor without temperature": (
        lambda: support_floor(LOGITS, temperature=0.0),
        "temperature is 0.0, but must",
    ),
    "blocks of nothing": (lambda: Scoring(max_rows=0), "max_rows must be at least 1, not 0"),
    "min-p above 1": (
        lambda: support_floor(LOGITS, min_p=1.5),
        "min_p is 1.5, but must be a probability relative to",
    ),
    "top-p of nothing": (
        lambda: support_floor(LOGITS, top_p=float("nan")),
        "top_p is nan, but must be a probability",
    ),
    "float targets": (
        lambda: facade.get_next_token_logprobs_from_logits(IDS.float(), GRID),
        r"target must be \[B, S\] integers for 2 sequences, not float32 \[2, 3\]",
    ),
    "more tokens than logits": (
        lambda: facade.get_next_token_logprobs_from_logits(
            torch.zeros(2, 5, dtype=torch.int64), GRID
        ),
        "5 tokens for logits at 3 positions over 1 context-parallel ranks; .* pass cp_group",
    ),
    "chunks of nothing": (
        lambda: facade.get_next_token_logprobs_from_logits(IDS, GRID, chunk_size=0),
        "chunk_size must be at least 1, not 0",
    ),
    "a teacher of two sizes": (
        lambda: facade.get_distillation_topk_logprobs_from_logits(
            GRID,
            torch.zeros(2, 3, 2),
            IDS[..., None],
            zero_outside_topk=True,
            calculate_entropy=False,
        ),
        r"logits \[2, 3, 2\] and token ids \[2, 3, 1\]",
    ),
    "sequences first": (
        lambda: facade.from_parallel_hidden_states_to_logprobs(
            GRID,
            torch.zeros(5, 8),
            None,
            None,
            IDS,
            0,
            5,
            None,
        ),
        r"\[positions, sequences, H\] .* 2 sequences, not \[2, 3, 8\]",
    ),
    "more vocabulary than head": (
        lambda: facade.from_parallel_hidden_states_to_logprobs(
            GRID,
            torch.zeros(5, 8),
            None,
            None,
            IDS.t().contiguous(),
            0,
            9,
            None,
        ),
        "0 to 9, does not fit the 5 rows of its head",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_invalid_logprob_arguments_are_refused_by_name(
    call: Callable[[], object], sentence: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        call()


def scored(layout: Layout, starts: tuple[int, ...]) -> object:
    shard = Shard(starts[layout.tp_rank], layout.tp_group)
    return vocab_logprobs(LOGITS, TOKEN, Scoring(shard=shard))[0]


@pytest.mark.parametrize(
    "starts", [(0, 0), (0, 7), (0, 9)], ids=["twice the same", "overlap", "gap"]
)
def test_overlapping_or_gapped_vocab_shards_are_refused(
    ranks: Ranks, starts: tuple[int, int]
) -> None:
    with pytest.raises(RanksFailed, match="do not form a vocabulary"):
        ranks.run(scored, starts, tp=2)
