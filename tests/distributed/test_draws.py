"""Draws from vocabularies of several tiles: their distribution, their bits, and rows that are
broken or masked.
"""

from __future__ import annotations

import pytest
import torch
from tiny_models import even_uniforms, plain_filtered
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep.distributed.sampling import draw_tokens, token_scores

SAMPLINGS = {
    "plain": SamplingParams(1),
    "temperature": SamplingParams(1, temperature=0.3),
    "greedy": SamplingParams(1, temperature=0.0),
    "top-k": SamplingParams(1, 0.8, top_k=20),
    "top-p": SamplingParams(1, top_p=0.7),
    "min-p": SamplingParams(1, 1.5, top_p=0.95, min_p=0.1),
    "both": SamplingParams(1, 1.3, top_k=30, top_p=0.9),
}
ALL = pytest.mark.parametrize("name", SAMPLINGS)
EXACT = pytest.mark.parametrize("exact", [False, True])


def make(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Rows from a few likely tokens to many, so that supports of any size are drawn from."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linspace(0.5, 6.0, rows)[:, None] * torch.randn(rows, columns, generator=generator)


@ALL
@pytest.mark.parametrize("columns", [2063, 2064, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_draw_logprob_equals_score_bit_for_bit_in_any_batch(
    name: str, columns: int, dtype: torch.dtype
) -> None:
    logits, uniform = make(13, columns).to(dtype), even_uniforms(13)[torch.randperm(13)]
    token, logprob = draw_tokens(logits, uniform, SAMPLINGS[name], row_invariant=True)
    assert torch.equal(logprob, token_scores(logits, token, SAMPLINGS[name], row_invariant=True)[0])
    for some in ([5], [12, 0, 7]):
        alone_token, alone = draw_tokens(
            logits[some], uniform[some], SAMPLINGS[name], row_invariant=True
        )
        assert torch.equal(alone_token, token[some])
        assert torch.equal(alone, logprob[some])


@ALL
@EXACT
@pytest.mark.parametrize(("columns", "spread"), [(50, 3.0), (5003, 1.0), (5003, 4.0)])
def test_draws_from_one_or_many_vocabulary_tiles_follow_filtered_distribution(
    name: str, exact: bool, columns: int, spread: float
) -> None:
    draws, sampling = 1_000, SAMPLINGS[name]
    logits = spread * make(1, columns, seed=1) / 0.5
    token, logprob = draw_tokens(logits.expand(draws, -1), even_uniforms(draws), sampling, exact)
    if sampling.greedy:
        assert (token == logits.argmax()).all()
        probability = logits.double().softmax(-1)[0]
    else:
        probability = plain_filtered(logits.double(), sampling).softmax(-1)[0]
        counted = torch.bincount(token, minlength=columns).double() / draws
        torch.testing.assert_close(
            counted.cumsum(0), probability.cumsum(0), atol=1.0 / draws, rtol=0.0
        )
        assert (probability[token] > 0).all()
    torch.testing.assert_close(logprob.double(), probability[token].log(), atol=1e-5, rtol=0.0)
    scored = token_scores(logits.expand(draws, -1), token, sampling, row_invariant=exact)[0]
    assert torch.equal(logprob, scored)


@ALL
@EXACT
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_or_inf_row_gets_non_finite_logprob_without_changing_other_draws(
    name: str, exact: bool, value: float
) -> None:
    logits, uniform = make(5, 9000), even_uniforms(5)
    whole, kept = draw_tokens(logits, uniform, SAMPLINGS[name], exact), torch.tensor([0, 1, 3, 4])
    logits[2, 4321] = value
    token, logprob = draw_tokens(logits, uniform, SAMPLINGS[name], exact)
    assert (token < 9000).all()
    assert logprob.isfinite().tolist() == [True, True, False, True, True]
    assert torch.equal(token[kept], whole[0][kept])
    assert torch.equal(logprob[kept], whole[1][kept])


@EXACT
def test_greedy_draw_takes_first_of_tied_tokens(exact: bool) -> None:
    logits = make(3, 9000).bfloat16()
    logits[0, [2047, 2048, 8999]] = logits[1, [5000, 5001]] = 50.0
    logits[2] = 0.0
    token, _ = draw_tokens(logits, even_uniforms(3), SAMPLINGS["greedy"], exact)
    assert token.tolist() == [2047, 5000, 0]
