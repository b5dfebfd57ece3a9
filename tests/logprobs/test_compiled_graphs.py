"""Compiled code: one whole graph, as small for many blocks as for one, with the values of code that
is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sharded import close, random, random_tokens
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from lockstep_logprobs import Scoring, hidden_logprobs, support_floor, vocab_logprobs
from lockstep_logprobs import model_utils as facade

M, V, D, K = 32, 40, 6, 3
TOKEN = random_tokens(M, K, vocabulary=V)
TEACHER = random(1, M, V, seed=4)
HEAD = random(V, D, seed=2)

Scored = Callable[[Tensor], Tensor]


def of_logits(rows: int) -> Scored:
    scoring = Scoring(entropy=True, max_rows=rows)

    def function(logits: Tensor) -> Tensor:
        logprob, entropy = vocab_logprobs(logits, TOKEN, scoring)
        assert entropy is not None
        return logprob.sum() + 0.5 * entropy.sum()

    return function


def of_logits_to_overwrite(rows: int) -> Scored:
    scoring = Scoring(overwrite=True, max_rows=rows)
    return lambda logits: vocab_logprobs(logits * 1.0, TOKEN, scoring)[0].sum()


def of_hidden_states(rows: int) -> Scored:
    scoring = Scoring(entropy=True, max_rows=rows)

    def function(logits: Tensor) -> Tensor:
        logprob, entropy = hidden_logprobs(logits @ HEAD, HEAD, TOKEN, scoring)
        assert entropy is not None
        return logprob.sum() + 0.5 * entropy.sum()

    return function


def in_the_support(top_k: int | None, top_p: float) -> Callable[[int], Scored]:
    def of(rows: int) -> Scored:
        scoring = Scoring(sampled=True, max_rows=rows)

        def function(logits: Tensor) -> Tensor:
            floor = support_floor(logits, top_k=top_k, top_p=top_p, max_rows=rows)
            return vocab_logprobs(logits, TOKEN[:, :1], scoring, floor)[0].sum()

        return function

    return of


def of_the_facade(rows: int) -> Scored:
    filters = facade.TrainingSamplingParams(top_k=V, top_p=0.99)
    token = TOKEN[None, :, 0]
    return lambda logits: facade.from_parallel_logits_to_logprobs(
        logits[None], token, 0, V, None, chunk_size=rows, sampling_params=filters
    ).clamp(min=-9.0).sum()  # fmt: skip


def of_soft_targets(rows: int) -> Scored:
    return lambda logits: facade.DistributedCrossEntropy.apply(logits[None], TEACHER, None).sum()


FUNCTIONS = {
    "logits": of_logits,
    "logits to overwrite": of_logits_to_overwrite,
    "hidden states": of_hidden_states,
    "top-k": in_the_support(5, 1.0),
    "top-k and top-p": in_the_support(5, 0.9),
    "top-p": in_the_support(None, 0.9),
    "facade": of_the_facade,
    "cross-entropy": of_soft_targets,
}


def run(function: Scored) -> tuple[Tensor, Tensor]:
    logits = random(M, V).requires_grad_()
    value = function(logits)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


@pytest.mark.filterwarnings("default")  # dynamo itself warns while it traces an autograd function
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_logprob_graph_size_does_not_depend_on_row_blocks(name: str) -> None:
    nodes: list[int] = []

    def count(graph: GraphModule, _: object) -> GraphModule:
        nodes.append(len(graph.graph.nodes))
        return graph

    for rows in (M, 1):
        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=count, bw_compiler=count)
        compiled = run(torch.compile(FUNCTIONS[name](rows), backend=backend, fullgraph=True))
        for found, plain in zip(compiled, run(FUNCTIONS[name](rows)), strict=True):
            close(found, plain, atol=1e-6, rtol=1e-6)
    assert len(nodes) == 4, "one graph forward and one back, for one block and for many"
    assert nodes[:2] == nodes[2:]
