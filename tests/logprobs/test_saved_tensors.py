"""What is kept for backward: under activation checkpointing and saved-tensor hooks gradients are
the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sharded import random, random_tokens
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lockstep_logprobs import Scoring, hidden_logprobs, support_floor, vocab_logprobs
from lockstep_logprobs import model_utils as facade

B, S, V, D = 2, 6, 24, 5
ENTROPY = Scoring(entropy=True)
TARGET = random_tokens(B, S, vocabulary=V)
LIKELY = random(B, S, V).argmax(-1)

Function = Callable[[Tensor], Tensor]


def of_logits(logits: Tensor) -> Tensor:
    logprob, entropy = vocab_logprobs(logits.flatten(0, 1), TARGET.view(-1, 1), ENTROPY)
    assert entropy is not None
    return logprob.sum() + 0.5 * entropy.sum()


def of_hidden_states(logits: Tensor) -> Tensor:
    logprob, entropy = hidden_logprobs(
        logits.flatten(0, 1), random(V, V, seed=2), TARGET.view(-1, 1), ENTROPY
    )
    assert entropy is not None
    return logprob.sum() + 0.5 * entropy.sum()


def in_the_support(logits: Tensor) -> Tensor:
    rows = logits.flatten(0, 1)
    floor = support_floor(rows, top_k=9, top_p=0.9)
    return vocab_logprobs(rows, LIKELY.view(-1, 1), Scoring(sampled=True), floor)[0].sum()


FUNCTIONS: dict[str, Function] = {
    "vocab_logprobs": of_logits,
    "hidden_logprobs": of_hidden_states,
    "a support": in_the_support,
    "DistributedLogprob": lambda x: facade.DistributedLogprob.apply(x, TARGET, 0, V, None).sum(),
    "ChunkedDistributedLogprob": lambda x: facade.ChunkedDistributedLogprob.apply(
        x, TARGET, 0, V, 2, None
    ).sum(),
    "ChunkedDistributedEntropy": lambda x: facade.ChunkedDistributedEntropy.apply(x, 2, None).sum(),
    "DistributedCrossEntropy": lambda x: facade.DistributedCrossEntropy.apply(
        x, random(B, S, V, seed=4), None
    ).sum(),
    "ChunkedDistributedGatherLogprob": lambda x: facade.ChunkedDistributedGatherLogprob.apply(
        x, TARGET[..., None], 0, V, 2, None
    ).sum(),
    "ChunkedDistributedLogprobWithSampling": lambda x: (
        facade.ChunkedDistributedLogprobWithSampling.apply(x, LIKELY, None, 9, 0.9, 2).sum()
    ),
    "ChunkedDistributedHiddenStatesToLogprobs": lambda x: (
        facade.ChunkedDistributedHiddenStatesToLogprobs.apply(
            x.transpose(0, 1), TARGET, random(V, V, seed=2), 0, V, 2, None
        ).sum()
    ),
    "log-softmax": lambda x: facade.vocab_parallel_log_softmax(x, 0.7).square().mean(),
    "next token": lambda x: facade.get_next_token_logprobs_from_logits(TARGET, x).sum(),
    "top-k distillation": lambda x: facade.get_distillation_topk_logprobs_from_logits(
        x, random(B, S, 3, seed=5), random_tokens(B, S, 3, vocabulary=V), True, False
    )[0].sum(),
}
BY_NAME = pytest.mark.parametrize("name", FUNCTIONS)


def gradient(function: Function) -> Tensor:
    logits = random(B, S, V).requires_grad_()
    function(logits * 1.0).backward()
    assert logits.grad is not None
    return logits.grad


@BY_NAME
def test_activation_checkpointing_changes_no_gradient(name: str) -> None:
    function = FUNCTIONS[name]
    recomputed = gradient(lambda logits: checkpoint(function, logits, use_reentrant=False))
    assert torch.equal(recomputed, gradient(function))
