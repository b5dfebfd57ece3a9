"""The facade on one process that knows no process groups: `None` stands for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dense
import pytest
import torch
from sharded import close, random, random_tokens
from torch import Tensor

from lockstep_logprobs import model_utils as facade

B, S, V, K, D = 2, 6, 10, 3, 4
LOGITS = random(B, S, V)
TARGET = LOGITS.topk(2).indices[..., 1]
INDEX = random_tokens(B, S, K, vocabulary=V)
CU_SEQLENS = torch.tensor([0, 4, 4, 12])
HIDDEN, WEIGHT = random(S, B, D), random(V, D, seed=2)
NEXT = dense.logprobs(LOGITS.double(), dense.shift(TARGET))[:, :-1]

CASES: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
    "DistributedLogprob": (
        lambda: facade.DistributedLogprob.apply(LOGITS, TARGET, 0, V, None),
        dense.logprobs(LOGITS.double(), TARGET),
    ),
    "ChunkedDistributedLogprob": (
        lambda: facade.ChunkedDistributedLogprob.apply(LOGITS, TARGET, 0, V, 4, None),
        dense.logprobs(LOGITS.double(), TARGET),
    ),
    "DistributedCrossEntropy": (
        lambda: facade.DistributedCrossEntropy.apply(LOGITS, LOGITS.flip(-1), None),
        -dense.sum_p_log_q(LOGITS.flip(-1).double(), LOGITS.double()),
    ),
    "DistributedLogprobWithSampling": (
        lambda: facade.DistributedLogprobWithSampling.apply(LOGITS, TARGET, None, 4, 0.9),
        dense.logprobs(dense.filtered(LOGITS.double(), 4, 0.9), TARGET),
    ),
    "ChunkedDistributedLogprobWithSampling": (
        lambda: facade.ChunkedDistributedLogprobWithSampling.apply(
            LOGITS, TARGET, None, None, 0.9, 4
        ),
        dense.logprobs(dense.filtered(LOGITS.double(), None, 0.9), TARGET),
    ),
    "ChunkedDistributedGatherLogprob": (
        lambda: facade.ChunkedDistributedGatherLogprob.apply(LOGITS, INDEX, 0, V, None, None),
        dense.picked_logprobs(LOGITS.double(), INDEX),
    ),
    "ChunkedDistributedEntropy": (
        lambda: facade.ChunkedDistributedEntropy.apply(LOGITS, None, None),
        dense.sum_p_log_p(LOGITS.double()),
    ),
    "log_softmax": (
        lambda: facade._compute_distributed_log_softmax(LOGITS, None),
        LOGITS.double().log_softmax(-1),
    ),
    "softmax": (
        lambda: facade._compute_distributed_softmax(LOGITS, None),
        LOGITS.double().softmax(-1),
    ),
    "from_parallel": (
        lambda: facade.from_parallel_logits_to_logprobs(LOGITS, TARGET, 0, V, None),
        NEXT,
    ),
    "dtensor": (
        lambda: facade.dtensor_from_parallel_logits_to_logprobs(LOGITS, TARGET, 0, V, None),
        NEXT,
    ),
    "next_token": (lambda: facade.get_next_token_logprobs_from_logits(TARGET, LOGITS), NEXT),
    "packed": (
        lambda: facade.from_parallel_logits_to_logprobs_packed_sequences(
            LOGITS.view(1, B * S, V), TARGET.view(1, -1), CU_SEQLENS, 7, 0, V, None
        ),
        dense.packed_logprobs(
            LOGITS.double().view(-1, V), TARGET.flatten(), CU_SEQLENS.tolist(), 7
        ),
    ),
    "topk": (
        lambda: facade.distributed_vocab_topk(
            LOGITS, K, None, vocab_start_index=0, vocab_end_index=V
        )[0],
        LOGITS.topk(K).values,
    ),
    "gather_logits": (
        lambda: facade.gather_logits_at_global_indices(
            LOGITS, INDEX, vocab_start_index=0, vocab_end_index=V
        ),
        LOGITS.gather(-1, INDEX),
    ),
    "distillation": (
        lambda: facade.get_distillation_topk_logprobs_from_logits(
            LOGITS, INDEX.float(), INDEX, True, False
        )[0],
        dense.picked_logprobs(LOGITS.double(), INDEX)[:, :-1],
    ),
    "hidden": (
        lambda: facade.from_parallel_hidden_states_to_logprobs(
            HIDDEN, WEIGHT, None, False, TARGET, 0, V, None
        ),
        dense.logprobs(HIDDEN.double().transpose(0, 1) @ WEIGHT.double().T, dense.shift(TARGET))[
            :, :-1
        ],
    ),
    "allgather": (lambda: facade.allgather_cp_sharded_tensor(LOGITS, None), LOGITS),
    "vp2sq": (lambda: facade.all_to_all_vp2sq(LOGITS.view(-1, V), None), LOGITS.view(-1, V)),
    "sq2vp": (lambda: facade.all_to_all_sq2vp(LOGITS.view(-1, V), None), LOGITS.view(-1, V)),
}


RANGE = {"vocab_start_index": 0, "vocab_end_index": V, "tp_group": None}


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((HIDDEN, WEIGHT, False, TARGET, 0, V, None), {}),
        ((HIDDEN, WEIGHT, None, TARGET, 0, V, None, True), {"chunk_size": 2}),
        ((HIDDEN, WEIGHT, None), {"target": TARGET, **RANGE}),
        ((HIDDEN, WEIGHT), {"runtime_gather_output": False, "target": TARGET, **RANGE}),
        ((HIDDEN, -WEIGHT, WEIGHT, None, TARGET, 0, V, None), {}),
        (
            (HIDDEN, -WEIGHT),
            {"output_weight": WEIGHT, "runtime_gather_output": None, "target": TARGET, **RANGE},
        ),
    ],
)
def test_hidden_state_logprobs_accept_calls_with_and_without_output_weight(
    args: Any, keywords: Any
) -> None:
    """The page of NeMo RL has the argument, and its newest version has dropped it."""
    found = facade.from_parallel_hidden_states_to_logprobs(*args, **keywords)
    close(found, CASES["hidden"][1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_model_utils_functions_match_float64_without_process_groups(name: str) -> None:
    function, expected = CASES[name]
    assert not torch.distributed.is_initialized()
    close(function(), expected, atol=2e-5, rtol=1e-5)
