"""The mathematics of PPO against values worked out by hand and float64 references of a few
lines.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.core.metrics import merge_metrics
from lockstep.objectives.advantage import gae, length_adaptive_lambda
from lockstep.objectives.divergence import k1, k2, k3, kl_loss
from lockstep.objectives.masks import masked_whiten, sequence_sum
from lockstep.objectives.mismatch import (
    icepop,
    measure_agreement,
    sequence_mismatch,
    sequence_tis,
    token_tis,
)
from lockstep.objectives.policy import clip_surrogate, probability_ratio
from lockstep.objectives.shaping import overlong_penalty, scale_reward, token_rewards

NAN = float("nan")
LN2 = math.log(2.0)


def close(actual: Tensor, expected: Tensor | list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual.double(), torch.as_tensor(expected).double(), rtol=1e-5, atol=atol
    )


def on(*flags: int) -> Tensor:
    return torch.tensor(flags, dtype=torch.bool)


# masks


def test_masked_whiten_uses_mean_and_population_variance_of_masked_values() -> None:
    # mean of 1, 3, 5 is 3 and the population variance 8/3
    close(
        masked_whiten(torch.tensor([1.0, NAN, 3.0, 5.0]), on(1, 0, 1, 1)),
        [-math.sqrt(1.5), 0.0, 0.0, math.sqrt(1.5)],
    )


# advantages: the conformance suite has the cases


def test_masked_whiten_of_empty_mask_or_equal_values_is_zero() -> None:
    close(masked_whiten(torch.tensor([NAN, 4.0]), on(0, 0)), [0.0, 0.0])
    for value in (4.0, 0.1, 0.3, 0.7, 3000.1):
        assert (
            masked_whiten(torch.full((48,), value), torch.ones(48).bool()).tolist() == [0.0] * 48
        ), value


def test_gae_takes_a_lambda_per_sequence() -> None:
    reward, value = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]), torch.zeros(6)
    lam = torch.tensor([1.0, 0.3, 0.0, 0.5])
    actual = gae(
        reward, value, torch.ones(6).bool(), torch.tensor([2, 0, 2, 2]), gamma=1.0, lam=lam
    )
    close(actual, [1.0, 1.0, 0.0, 1.0, 0.5, 1.0])


def test_length_adaptive_lambda_is_computed_from_trainable_length_and_clamped_at_0() -> None:
    # α = ½ and 4, 1 and 0 trainable tokens: 1 − 1/2, and where α·length < 1 the clamp gives 0
    mask = on(0, 1, 1, 1, 1, 0, 1, 0)
    close(length_adaptive_lambda(mask, torch.tensor([5, 2, 1]), alpha=0.5), [0.5, 0.0, 0.0])


# divergence


def test_k1_k2_and_k3_match_hand_computed_values() -> None:
    # Δ = ln 2: k1 = ln 2, k2 = (ln 2)²/2, k3 = ½ − 1 + ln 2
    logprob, ref = torch.tensor([LN2, 0.0]), torch.zeros(2)
    close(k1(logprob, ref), [LN2, 0.0])
    close(k2(logprob, ref), [LN2**2 / 2, 0.0])
    close(k3(logprob, ref), [LN2 - 0.5, 0.0])


@given(
    st.lists(st.tuples(st.floats(-50, 0, width=32), st.floats(-50, 0, width=32)), min_size=1),
    st.sampled_from([k2, k3]),
)
def test_kl_estimates_are_not_negative(pairs, estimate) -> None:
    logprob, ref = torch.tensor(pairs).T
    assert estimate(logprob, ref).ge(0).all()
    assert estimate(ref, ref).eq(0).all()


def test_kl_loss_gradient_equals_gradient_of_ratio_weighted_k3() -> None:
    logp, old, ref = (torch.randn(9, dtype=torch.float64) for _ in range(3))
    logp.requires_grad_()
    ours = torch.autograd.grad(kl_loss(logp, old, ref).sum(), logp)[0]
    close(ours, torch.autograd.grad(((logp - old).exp() * k3(logp, ref)).sum(), logp)[0])
    close(ours, (logp - old).exp() * (logp - ref))


# policy


def surrogate(ratio: float, a: float, dual_clip: float | None = None) -> tuple[float, bool, float]:
    """Loss, whether a bound decides it, and the gradient with respect to log π."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, clipped = clip_surrogate(
        logprob, torch.zeros(1), torch.tensor([a]), clip_low=0.2, clip_high=0.3, dual_clip=dual_clip
    )
    loss.sum().backward()
    assert logprob.grad is not None
    return round(loss.item(), 5), bool(clipped), round(logprob.grad.item(), 5)


@pytest.mark.parametrize(
    ("ratio", "a", "dual_clip", "expected"),
    [
        (1.0, 2.0, None, (-2.0, False, -2.0)),  # at ratio 1 the gradient is −A
        (1.5, 2.0, None, (-2.6, True, 0.0)),  # too likely already: 1 + 0.3
        (0.5, 2.0, None, (-1.0, False, -1.0)),  # a good token became unlikely: pull it back
        (0.5, -2.0, None, (1.6, True, 0.0)),  # a bad one is unlikely enough: 1 − 0.2
        (5.0, -2.0, None, (10.0, False, 10.0)),  # a bad one became likely: pull without limit …
        (5.0, -2.0, 3.0, (6.0, True, 0.0)),  # … or with one
        (2.0, -2.0, 3.0, (4.0, False, 4.0)),
        (5.0, 2.0, 3.0, (-2.6, True, 0.0)),  # dual clip is for negative advantages only
    ],
)
def test_clipped_surrogate_loss_and_gradient_match_hand_computed_values(
    ratio: float, a: float, dual_clip: float | None, expected: tuple
) -> None:
    assert surrogate(ratio, a, dual_clip) == expected


def test_extreme_probability_ratio_gives_finite_surrogate_gradient() -> None:
    logprob = torch.tensor([200.0, -200.0], requires_grad=True)
    for sign in (1.0, -1.0):
        loss, _ = clip_surrogate(
            logprob,
            torch.zeros(2),
            torch.full((2,), sign),
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=None,
        )
        loss.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()
    close(probability_ratio(torch.tensor([200.0]), torch.zeros(1)), [math.exp(20.0)])


# mismatch

# ratios learner / sampler: sequence one 2 and 4, sequence two ½ (and a token that does not count),
# sequence three none
LEARNER = torch.tensor([LN2, 2 * LN2, -LN2, NAN, 5.0])
SAMPLER = torch.tensor([0.0, 0.0, 0.0, 0.0, NAN])
MASK, LENGTHS = on(1, 1, 1, 0, 0), torch.tensor([2, 2, 1])


def test_tis_and_icepop_weights_match_hand_computed_values() -> None:
    arguments = (LEARNER, SAMPLER, MASK)
    close(token_tis(*arguments, 3.0), [2.0, 3.0, 0.5, 0.0, 0.0])
    close(sequence_tis(*arguments, LENGTHS, 6.0), [6.0, 6.0, 0.5, 0.0, 0.0])
    close(sequence_tis(*arguments, LENGTHS, 10.0), [8.0, 8.0, 0.5, 0.0, 0.0])
    close(icepop(*arguments, 0.6, 3.0), [2.0, 0.0, 0.0, 0.0, 0.0])
    close(icepop(*arguments, 0.5, 4.0), [2.0, 4.0, 0.5, 0.0, 0.0], atol=1e-5)


def test_sequence_mismatch_is_mean_exp_of_absolute_gap_per_sequence() -> None:
    close(sequence_mismatch(LEARNER, SAMPLER, MASK, LENGTHS), [3.0, 2.0, 1.0])


def test_agreement_metrics_match_hand_computed_values() -> None:
    figures = measure_agreement(LEARNER, SAMPLER, MASK, LENGTHS).floats()
    assert figures["token_mult_prob_error"] == pytest.approx((2 + 4 + 2) / 3)
    assert figures["sampler_kl_k1"] == pytest.approx(-2 * LN2 / 3)  # −ΣΔ / 3
    # Σ(e^Δ − 1 − Δ) / 3
    assert figures["sampler_kl_k3"] == pytest.approx((2 + 4 + 0.5 - 3 - 2 * LN2) / 3)
    assert figures["sequence_ess"] == pytest.approx((8 + 0.5) ** 2 / (2 * (64 + 0.25)))
    assert figures["max_abs_logprob_diff"] == pytest.approx(2 * LN2)


def test_the_gap_is_measured_by_position_in_the_sequence() -> None:
    """Two sequences, of 70 and 300 tokens: positions 0 to 63, 64 to 255 and from 256 on."""
    learner, mask = torch.zeros(370), torch.zeros(370, dtype=torch.bool)
    for place, gap in ((10, 0.5), (65, 1.0), (70 + 63, -1.5), (70 + 64, 2.0), (70 + 256, -4.0)):
        learner[place], mask[place] = gap, True
    learner[20] = 9.0  # a token that the policy did not choose
    figures = measure_agreement(learner, torch.zeros(370), mask, torch.tensor([70, 300])).floats()
    gaps = {name: value for name, value in figures.items() if name.startswith("gap_from_")}
    assert gaps == {"gap_from_0": 1.0, "gap_from_64": 1.5, "gap_from_256": 4.0}


def test_merged_agreement_metrics_equal_metrics_of_full_batch() -> None:
    torch.manual_seed(0)
    learner, sampler, mask = torch.randn(40) * 30, torch.randn(40), torch.rand(40) > 0.3
    mask[::4] = True
    mask[8:12] = False  # one sequence has nothing
    lengths = torch.full((10,), 4)
    whole = measure_agreement(learner, sampler, mask, lengths).floats()
    parts = [slice(0, 8), slice(8, 12), slice(12, 40)]
    split = merge_metrics(
        measure_agreement(learner[p], sampler[p], mask[p], lengths[: (p.stop - p.start) // 4])
        for p in parts
    ).floats()
    assert split == pytest.approx(whole, rel=1e-4)
    weight = (
        sequence_sum(learner - sampler, mask, lengths).double()[torch.arange(10) != 2].softmax(0)
    )
    assert whole["sequence_ess"] == pytest.approx(float(1 / (9 * weight.square().sum())), rel=1e-4)


# shaping


def test_scale_reward_and_overlong_penalty_match_hand_computed_values() -> None:
    close(
        scale_reward(torch.tensor([0.0, 0.5, 1.0, 2.0]), (0.0, 1.0), (-1.0, 1.0)),
        [-1.0, 0.0, 1.0, 1.0],
    )
    # nothing up to 70 tokens, all of it from 100: 5/30 at 75, 20/30 at 90
    close(overlong_penalty(torch.tensor([10, 75, 90, 120]), 100, 30, 3.0), [0.0, 0.5, 2.0, 3.0])


def test_token_reward_is_placed_at_last_trainable_token() -> None:
    mask = on(0, 1, 1, 0, 0, 0, 1, 0)
    reward = token_rewards(torch.tensor([2.0, 3.0, NAN, 5.0]), mask, torch.tensor([4, 0, 2, 2]))
    close(reward, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 5.0, 0.0])
