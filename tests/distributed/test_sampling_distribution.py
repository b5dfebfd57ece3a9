from __future__ import annotations

import pytest
import torch
from tiny_models import even_uniforms, plain_filtered
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep.distributed.sampling import draw_tokens, token_scores
from lockstep_logprobs.logits_sampling_utils import apply_top_k_top_p

LOGITS = 3 * torch.randn(32, 50, generator=torch.Generator().manual_seed(0))


def filtered_logits(logits: Tensor, sampling: SamplingParams) -> Tensor:
    return apply_top_k_top_p(logits / sampling.temperature, sampling.top_k, sampling.top_p)[0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 80])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.99, 1.0])
def test_top_k_and_top_p_filters_match_transformers(
    temperature: float, top_k: int, top_p: float
) -> None:
    sampling = SamplingParams(1, temperature, top_k, top_p)
    torch.testing.assert_close(filtered_logits(LOGITS, sampling), plain_filtered(LOGITS, sampling))


def test_scored_token_outside_top_k_has_finite_logprob() -> None:
    sampling = SamplingParams(1, top_k=1)
    likeliest, least = LOGITS.argmax(-1), LOGITS.argmin(-1)
    assert (token_scores(LOGITS, likeliest, sampling)[0] == 0).all()
    assert torch.isfinite(token_scores(LOGITS, least, sampling)[0]).all()


def test_draw_over_large_vocabulary_matches_float64_inverse_cdf() -> None:
    logits = torch.randn(1, 2_500, generator=torch.Generator().manual_seed(0)) * 3
    uniform = torch.cat(
        [even_uniforms(5_000), torch.tensor([2.0**-53, 1.0 - 2.0**-53], dtype=torch.float64)]
    )
    token, _ = draw_tokens(logits.expand(len(uniform), -1), uniform, SamplingParams(1))
    expected = torch.searchsorted(
        logits[0].double().softmax(-1).cumsum(-1), uniform[:-2], right=True
    )
    assert torch.equal(token, torch.cat([expected, torch.tensor([0, 2_499])]))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(1, temperature=0.7), SamplingParams(1, 0.7, top_k=9, top_p=0.8)]
)
def test_scores_have_the_gradient_of_a_filtered_softmax(sampling: SamplingParams) -> None:
    logits = LOGITS.clone().requires_grad_()
    token = LOGITS.argmax(-1)
    token_scores(logits, token, sampling)[0].sum().backward()
    probability = plain_filtered(LOGITS, sampling).softmax(-1)
    expected = (torch.nn.functional.one_hot(token, 50) - probability) / sampling.temperature
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=0.0)


def test_minus_inf_logits_add_nothing_to_entropy_when_all_tokens_are_scored() -> None:
    logits = LOGITS.masked_fill(LOGITS < -4, -torch.inf).requires_grad_()
    every = torch.arange(50).expand(32, -1)
    entropy, expected = (
        token_scores(logits, token, SamplingParams(1))[1] for token in (every, every[:, :1])
    )
    assert entropy is not None
    assert expected is not None
    torch.testing.assert_close(entropy, expected)
    entropy.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_bf16_logits_are_scored_in_fp32() -> None:
    rounded = LOGITS.bfloat16()
    scored = token_scores(rounded, LOGITS.argmax(-1), SamplingParams(1, temperature=0.7))[0]
    assert scored.dtype == torch.float32
    expected = (
        (rounded.double() / 0.7).log_softmax(-1).gather(-1, LOGITS.argmax(-1, keepdim=True))[:, 0]
    )
    torch.testing.assert_close(scored.double(), expected, atol=1e-6, rtol=0.0)
