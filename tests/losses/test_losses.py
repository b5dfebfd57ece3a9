"""Losses are values that return sums: on a small ragged batch, against the formula written out in
float64.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import merge_metrics
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue

NAN = float("nan")
LENGTHS = torch.tensor([3, 2])
MASK = torch.tensor([False, True, True, False, True])
# of the trainable tokens: clipped above, inside, beyond the dual clip
RATIO = [1.0, 1.5, 0.9, 1.0, 5.0]
ADVANTAGE = [NAN, 2.0, 1.0, NAN, -1.0]
WEIGHT = [NAN, 1.0, 0.5, NAN, 2.0]
REF = [NAN, -1.0, -2.0, NAN, -0.5]

SURROGATE = ClippedSurrogate(0.2, 0.3, dual_clip=3.0)
WITH_KL = ClippedSurrogate(0.2, 0.3, dual_clip=3.0, kl_coef=0.1)
RELATIVES = {
    "mean of responses": replace(WITH_KL, mean="responses"),
    "constant": replace(WITH_KL, mean="constant", max_tokens=4),
    "sequence ratio": replace(WITH_KL, mean="responses", sequence_ratio=True),
    "cispo": replace(WITH_KL, dual_clip=None, cispo=True),
}
ALL: list[Loss] = [
    SURROGATE,
    WITH_KL,
    ClippedValue(0.5),
    ClippedValue(None),
    CrossEntropyLoss(),
    *RELATIVES.values(),
]


def batch(**columns: list[float]) -> Batch:
    tensors = {name.rstrip("_"): torch.tensor(column) for name, column in columns.items()}
    return Batch(torch.zeros(5, dtype=torch.int64), LENGTHS, {"mask": MASK, **tensors})


@pytest.fixture
def rollouts() -> Batch:
    return batch(
        old_logprob=[NAN, -1.0, -1.0, NAN, -2.0],
        advantage=ADVANTAGE,
        weight=WEIGHT,
        ref_logprob=REF,
    )


@pytest.fixture
def logprob(rollouts: Batch) -> torch.Tensor:
    return (rollouts["old_logprob"].nan_to_num(0.0) + torch.tensor(RATIO).log()).requires_grad_()


def test_surrogate_sums_weighted_token_losses(rollouts: Batch, logprob: torch.Tensor) -> None:
    total, metrics = SURROGATE(Outputs(logprob=logprob), rollouts)
    assert total.item() == pytest.approx(1.0 * -2.6 + 0.5 * -0.9 + 2.0 * 3.0)
    total.backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx([0.0, 0.0, 0.5 * -0.9, 0.0, 0.0])
    figures = metrics.floats()
    assert figures == pytest.approx(
        {
            "loss": total.item() / 3,
            "probs_ratio": (1.5 + 0.9 + 5.0) / 3,
            "probs_ratio_min": 0.9,
            "probs_ratio_max": 5.0,
            "clip_fraction": 2 / 3,
            "approx_kl": sum(r - 1 - math.log(r) for r in (1.5, 0.9, 5.0)) / 3,
            "approx_entropy": -sum((math.log(1.5) - 1, math.log(0.9) - 1, math.log(5.0) - 2)) / 3,
        },
        rel=1e-5,
    )


def term(
    ratio: float, advantage: float, weight: float, old: float, ref: float, cispo: bool
) -> float:
    """A token of `WITH_KL`, in Python's own numbers."""
    surrogate = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.3))
    if advantage < 0:
        surrogate = min(surrogate, -advantage * 3.0)
    if cispo:
        surrogate = -min(ratio, 1.3) * advantage * (old + math.log(ratio))
    return weight * surrogate + 0.1 * weight * pull(ratio, old, ref)


@pytest.mark.parametrize("name", RELATIVES)
def test_surrogate_variants_match_hand_computed_loss_and_denominator(
    rollouts: Batch, logprob: torch.Tensor, name: str
) -> None:
    loss = RELATIVES[name]
    ratios = [1.5, 0.9, 5.0]
    if loss.sequence_ratio:  # of the two tokens of the first response
        ratios[:2] = [math.sqrt(1.5 * 0.9)] * 2
    of_tokens = [
        (1.5, 2.0, 1.0, -1.0, -1.0),
        (0.9, 1.0, 0.5, -1.0, -2.0),
        (5.0, -1.0, 2.0, -2.0, -0.5),
    ]
    terms = [
        term(ratio, advantage, weight, old, ref, loss.cispo)
        + 0.1
        * weight
        * (
            pull(own, old, ref) - pull(ratio, old, ref)
        )  # the divergence is that of the tokens themselves
        for ratio, (own, advantage, weight, old, ref) in zip(ratios, of_tokens, strict=True)
    ]
    shares = {"tokens": [1.0] * 3, "responses": [0.5, 0.5, 1.0], "constant": [0.25] * 3}[loss.mean]
    expected = sum(share * one for share, one in zip(shares, terms, strict=True))
    total, metrics = loss(Outputs(logprob=logprob), rollouts)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert loss.denominator == ("tokens" if loss.mean == "tokens" else "rows")
    assert metrics["loss"].value() == pytest.approx(
        expected / (3 if loss.mean == "tokens" else 2), rel=1e-5
    )


def pull(ratio: float, old: float, ref: float) -> float:
    """ρ·Δ²/2."""
    return ratio * 0.5 * (old + math.log(ratio) - ref) ** 2


def test_cispo_gives_every_token_a_gradient_and_none_through_its_weight(
    rollouts: Batch, logprob: torch.Tensor
) -> None:
    total, _ = ClippedSurrogate(0.2, 0.3, cispo=True)(Outputs(logprob=logprob), rollouts)
    total.backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx(
        [0.0, 1.0 * -1.3 * 2.0, 0.5 * -0.9, 0.0, 2.0 * 1.3]
    )


def test_a_sequence_ratio_gives_each_token_the_gradient_of_its_own_advantage(
    rollouts: Batch, logprob: torch.Tensor
) -> None:
    total, _ = ClippedSurrogate(0.5, 0.5, mean="responses", sequence_ratio=True)(
        Outputs(logprob=logprob), rollouts
    )
    total.backward()
    # of the first response's two tokens, which have advantages 2 and 1
    ratio = math.sqrt(1.5 * 0.9)
    assert logprob.grad is not None
    expected = [0.0, 0.5 * -ratio * 2.0, 0.5 * 0.5 * -ratio * 1.0, 0.0, 2.0 * 5.0]
    assert logprob.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_entropy_bonus_subtracts_weighted_entropy_of_trainable_tokens(
    rollouts: Batch, logprob: torch.Tensor
) -> None:
    entropy = torch.tensor([math.nan, 0.5, 1.0, math.nan, 2.0], requires_grad=True)
    plain, _ = SURROGATE(Outputs(logprob=logprob), rollouts)
    total, metrics = replace(SURROGATE, entropy_coef=0.1)(
        Outputs(logprob=logprob, entropy=entropy), rollouts
    )
    assert metrics["entropy"].value() == pytest.approx(3.5 / 3)
    assert (total - plain).item() == pytest.approx(-0.35, rel=1e-5)
    total.backward()
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([0.0, -0.1, -0.1, 0.0, -0.1])
    with pytest.raises(AssertionError, match="needs a head that gives entropies"):
        replace(SURROGATE, entropy_coef=0.1)(Outputs(logprob=logprob), rollouts)


def test_clipped_value_loss_gradient_and_metrics_match_hand_computed_values() -> None:
    rollouts = batch(old_value=[NAN, 1.0, 1.0, NAN, 1.0], return_=[NAN, 2.0, 4.0, NAN, 3.0])
    value = torch.tensor([9.0, 3.0, 3.0, 9.0, 1.25], requires_grad=True)
    total, metrics = ClippedValue(0.5)(Outputs(value=value), rollouts)
    assert total.item() == pytest.approx(0.5 + 3.125 + 0.5 * 1.75**2)
    total.backward()
    assert value.grad is not None
    assert value.grad.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0, -1.75])
    assert metrics.floats() == pytest.approx(
        {
            "loss": total.item() / 3,
            "vf_clipfrac": 1 / 3,
            "values_mean": 7.25 / 3,
            "returns_mean": 3.0,
            "explained_variance": 0.0,  # old values are one constant
        }
    )


def test_explained_variance_is_of_the_values_before_the_update() -> None:
    returns = [NAN, 2.0, 4.0, NAN, 3.0]
    perfect = batch(old_value=returns, return_=returns)
    _, metrics = ClippedValue(None)(Outputs(value=torch.zeros(5)), perfect)
    assert metrics["explained_variance"].value() == pytest.approx(1.0)


def test_cross_entropy_sums_only_masked_tokens() -> None:
    logprob = torch.tensor([NAN, -1.0, -2.0, NAN, -4.0], requires_grad=True)
    total, metrics = CrossEntropyLoss()(Outputs(logprob=logprob), batch())
    total.backward()
    assert total.item() == 7.0
    assert metrics.floats() == {"loss": pytest.approx(7 / 3)}
    assert logprob.grad is not None
    assert logprob.grad.tolist() == [0.0, -1.0, -1.0, 0.0, -1.0]


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_batch_without_trainable_tokens_gives_zero_loss_and_gradient(
    loss: Loss, rollouts: Batch
) -> None:
    columns = {
        "mask": torch.zeros(5, dtype=torch.bool),
        "old_value": torch.full((5,), NAN),
        "return": torch.ones(5),
    }
    head = torch.full((5,), 3.0, requires_grad=True)
    total, metrics = loss(Outputs(logprob=head, value=head), rollouts.with_columns(columns))
    total.backward()
    assert total.item() == 0.0
    assert head.grad is not None
    assert head.grad.eq(0).all()
    assert math.isnan(metrics["loss"].value())  # a mean of nothing


def learner_batch(seed: int, lengths: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    names = ("old_logprob", "advantage", "weight", "ref_logprob", "old_value", "return", "head")
    columns = {name: torch.randn(num_tokens, generator=generator) * 0.5 for name in names}
    mask = torch.rand(num_tokens, generator=generator) < 0.6
    return Batch(
        torch.zeros(num_tokens, dtype=torch.int64), torch.tensor(lengths), {**columns, "mask": mask}
    )


def over(pieces: list[Batch], loss: Loss) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Summed loss, its gradient with respect to what the head said of each token, and merged
    metrics.
    """
    heads = [piece["head"].clone().requires_grad_() for piece in pieces]
    results = [
        loss(Outputs(logprob=head, value=head), piece)
        for head, piece in zip(heads, pieces, strict=True)
    ]
    total = torch.stack([total for total, _ in results]).sum()
    gradients = torch.autograd.grad(total, heads)
    return (
        total.detach(),
        torch.cat(gradients),
        merge_metrics(metrics for _, metrics in results).floats(),
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32), st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 4)
)
def test_loss_gradient_and_metrics_do_not_depend_on_micro_batch_split(
    seed: int, lengths: list[int], size: int
) -> None:
    """However a batch is cut, summed losses, gradients and merged metrics are the same."""
    batch = learner_batch(seed, lengths)
    assume(batch.mask.sum() > 1)  # one return has no variance to explain
    for loss in (ClippedSurrogate(0.2, 0.2, 2.0, 0.1), ClippedValue(0.2), CrossEntropyLoss()):
        whole, gradient, figures = over([batch], loss)
        cut, cut_gradient, cut_figures = over(batch.split(size), loss)
        torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(cut_gradient, gradient, rtol=0, atol=0)
        assert cut_figures == pytest.approx(figures, rel=1e-4, abs=1e-4)
