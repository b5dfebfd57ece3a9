"""Row-invariant scores over shards of any size: the bits of one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from ranks import Collectives, Layout, Ranks
from sharded import close, random, random_tokens
from torch import Tensor

from lockstep_logprobs import Scoring, hidden_logprobs, support_floor, vocab_logprobs
from lockstep_logprobs.shard import WHOLE, Shard

SHARDS = (
    (24, (0, 60, 2040, 2100)),
    (300, (0, 256, 512)),
    (300, (0, 700, 2048)),
    (300, (0, 2040, 2053, 2060)),
    (300, (0, 1025, 2050, 3075, 4100)),
    (300, (0, 0, 4095, 4100)),
    (40, (0, 24576, 49152)),
    (9, (0, 75968, 151936)),
)
"""Rows, and the first columns of shards: smaller than a tile, empty, of few columns, even."""

OPTIONS: dict[str, dict[str, Any]] = {
    "hidden": {"temperature": 0.7, "entropy": True},
    "logits": {"temperature": 1.3},
    "top-k": {"temperature": 0.7, "entropy": True, "sampled": True},
    "top-p": {"sampled": True},
}
FILTERS: dict[str, dict[str, Any]] = {"top-k": {"top_k": 20, "top_p": 0.9}, "top-p": {"top_p": 0.8}}


def score(
    kind: str, x: Tensor, weight: Tensor, token: Tensor, shard: Shard, exact: bool = True
) -> tuple[Tensor, Tensor | None, Tensor]:
    """log p, the entropy, and the gradient of `x`, hidden states or logits."""
    scoring = Scoring(shard=shard, row_invariant=exact, **OPTIONS[kind])
    x = x.clone().requires_grad_()
    if kind == "hidden":
        logprob, entropy = hidden_logprobs(x, weight, token, scoring)
    else:
        floor = None
        if kind in FILTERS:
            floor = support_floor(x, shard, temperature=scoring.temperature, **FILTERS[kind])
        logprob, entropy = vocab_logprobs(x, token, scoring, floor)
    logprob.sum().backward()
    assert x.grad is not None
    return logprob.detach(), None if entropy is None else entropy.detach(), x.grad


def score_on_rank(
    layout: Layout, kind: str, x: Tensor, weight: Tensor, token: Tensor, bounds: tuple[int, ...]
) -> tuple[tuple[Tensor, Tensor | None, Tensor], Counter[str], Tensor]:
    """The scores, the collectives, and log p without row invariance."""
    start, end = bounds[layout.tp_rank : layout.tp_rank + 2]
    x = x if kind == "hidden" else x[:, start:end]
    args = kind, x, weight[start:end], token, Shard(start, layout.tp_group)
    with Collectives() as collectives:
        found = score(*args)
    return found, collectives.counts, score(*args, exact=False)[0]


def build_inputs(
    kind: str, rows: int, vocabulary: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    size = 1024 if rows == 24 else 16
    hidden = random(rows, size, scale=1.0).to(dtype)
    weight = random(vocabulary, size, seed=2, scale=2.8 / size**0.5)
    tokens = 1 if kind in FILTERS else 24
    token = random_tokens(rows, tokens, vocabulary=vocabulary + 2) - 1
    if rows == 24:  # of the first shard, as narrow products of 1,024 numbers sum in another order
        token = torch.arange(tokens).expand(rows, -1)
    x = hidden if kind == "hidden" else hidden @ weight.to(dtype).t()
    return x, weight.to(dtype), token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(("rows", "bounds"), SHARDS, ids=str)
def test_row_invariant_scores_over_shards_equal_one_process_bit_for_bit(
    ranks: Ranks, rows: int, bounds: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    x, weight, token = build_inputs(kind, rows, bounds[-1], dtype)
    logprob, entropy, gradient = score(kind, x, weight, token, WHOLE)
    answers = ranks.run(score_on_rank, kind, x, weight, token, bounds, tp=len(bounds) - 1)
    for (own, own_entropy, _), counts, _ in answers:
        assert torch.equal(own, logprob)
        assert (entropy is None) == (own_entropy is None)
        assert entropy is None or own_entropy is None or torch.equal(own_entropy, entropy)
        assert counts == answers[0][1]
    pieces = [own for (_, _, own), _, _ in answers]
    whole = pieces[0] if kind == "hidden" else torch.cat(pieces, 1)
    size = gradient.abs().max().item()
    close(whole, gradient, atol=(2e-5 if dtype == torch.float32 else 2.0**-7) * size, rtol=1e-5)


@pytest.mark.parametrize("kind", ["hidden", "logits"])
def test_sums_that_are_reduced_shard_by_shard_differ_from_one_process(
    ranks: Ranks, kind: str
) -> None:
    """The equality above needs tiles."""
    x, weight, token = build_inputs(kind, 40, 49152, torch.float32)
    logprob, *_ = score(kind, x, weight, token, WHOLE)
    bounds = (0, 24576, 49152)
    for _, _, reduced in ranks.run(score_on_rank, kind, x, weight, token, bounds, tp=2):
        assert not torch.equal(reduced, logprob)
        close(reduced, logprob, atol=2e-5)
