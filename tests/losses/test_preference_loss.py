"""The loss over pairs as a value: sums over active pairs, which rows count, and what is said of
them.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.types import PreferenceLoss
from lockstep.losses.base import Loss, Outputs, count_active
from lockstep.losses.preference import Preference

NAN = float("nan")
KINDS: list[PreferenceLoss] = ["dpo", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]
LENGTHS = [3, 4, 2, 3]  # two pairs: the first token of each sequence is the prompt
LOGPROB = [NAN, -1.0, -2.0, NAN, -3.0, -1.0, -1.0, NAN, -0.5, NAN, -2.0, -2.0]
REF = [NAN, -1.5, -2.5, NAN, -2.0, -1.0, -1.0, NAN, -1.0, NAN, -2.5, -2.0]
GAP = [1.0 - (-1.0), 0.5 - 0.5]  # Δ of either pair


def pairs(scores: list[float] | None = None) -> Batch:
    mask = torch.tensor(LOGPROB).isfinite()
    sample = {} if scores is None else {"score": torch.tensor(scores)}
    columns = {"mask": mask, "ref_logprob": torch.tensor(REF)}
    return Batch(
        torch.zeros(12, dtype=torch.int64), torch.tensor(LENGTHS), columns, sample, group_size=2
    )


def without(batch: Batch, row: int) -> Batch:
    """The same batch with one sequence taken out of the training."""
    return batch.with_columns({"mask": batch.mask & (batch.row != row)})


def figures(loss: Loss, batch: Batch) -> tuple[float, Tensor, dict[str, float]]:
    logprob = torch.tensor(LOGPROB, requires_grad=True)
    total, metrics = loss(Outputs(logprob=logprob), batch)
    total.backward()
    assert logprob.grad is not None
    return total.item(), logprob.grad, metrics.floats()


def test_dpo_loss_gradient_and_metrics_match_hand_computed_values() -> None:
    total, gradient, metrics = figures(Preference("dpo", beta=0.5), pairs())
    first = math.log1p(math.exp(-0.5 * GAP[0]))
    assert total == pytest.approx(first + math.log(2))
    pull = 0.5 / (1 + math.exp(0.5 * GAP[0]))
    slopes = [0.0, -pull, -pull, 0.0, pull, pull, pull, 0.0, -0.25, 0.0, 0.25, 0.25]
    assert gradient.tolist() == pytest.approx(slopes)
    rewards = [0.5 * d for d in (1.0, -1.0, 0.5, 0.5)]
    mean = sum(rewards) / 4
    assert metrics == pytest.approx(
        {
            "loss": total / 2,
            "preference_loss": total / 2,
            "sft_loss": (3.0 + 0.5) / 2,
            "acc": 0.5,  # a tie is no right answer
            "rewards_chosen_mean": (rewards[0] + rewards[2]) / 2,
            "rewards_rejected_mean": (rewards[1] + rewards[3]) / 2,
            "rewards_all_mean": mean,
            "rewards_all_std": math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / 4),
            "chosen_lengths": 1.5,
            "reject_lengths": 2.5,
        }
    )


def test_length_normalized_options_divide_log_probabilities_by_answer_length() -> None:
    total, _, metrics = figures(Preference("ipo", beta=0.5, length_normalized=True), pairs())
    gaps = [1.0 / 2 - (-1.0) / 3, 0.5 - 0.5 / 2]
    assert total == pytest.approx(sum((gap - 1.0) ** 2 for gap in gaps), rel=1e-6)
    assert metrics["acc"] == 1.0
    assert metrics["sft_loss"] == pytest.approx(3.5 / 2)
    assert figures(Preference(sft_length_normalized=True), pairs())[2]["sft_loss"] == pytest.approx(
        (1.5 + 0.5) / 2
    )


def test_sft_coef_adds_weighted_likelihood_loss_of_chosen_answers() -> None:
    plain, both = (figures(Preference(beta=0.5, sft_coef=coef), pairs()) for coef in (0.0, 0.2))
    assert both[0] - plain[0] == pytest.approx(0.2 * 3.5, rel=1e-6)
    chosen = [0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert (both[1] - plain[1]).tolist() == pytest.approx([-0.2 * one for one in chosen])
    assert both[2]["preference_loss"] == plain[2]["preference_loss"]
    only = figures(Preference(preference_coef=0.0, sft_coef=1.0), pairs())
    assert only[0] == pytest.approx(3.5)


def test_scale_loss_is_weighted_by_score_gap_and_rpo_loss_targets_it() -> None:
    batch = pairs([5.0, 1.0, 2.0, 1.5])
    losses = [math.log1p(math.exp(-0.5 * gap)) for gap in GAP]
    total, _, metrics = figures(Preference("scale", beta=0.5), batch)
    assert total == pytest.approx(4.0 * losses[0] + 0.5 * losses[1])
    assert (metrics["chosen_generated_rewards"], metrics["rejected_generated_rewards"]) == (
        3.5,
        1.25,
    )
    total = figures(Preference("rpo_sq", beta=0.5, gt_reward_scale=2.0), batch)[0]
    assert total == pytest.approx((0.5 * GAP[0] - 8.0) ** 2 + (0.5 * GAP[1] - 1.0) ** 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [2, 3])
def test_pair_with_fully_masked_answer_is_excluded_from_loss_and_metrics(
    kind: PreferenceLoss, row: int
) -> None:
    """Nor do its scores, whatever stands there."""
    loss, batch = Preference(kind, beta=0.5, sft_coef=0.1), pairs([5.0, 1.0, NAN, 1.5])
    alone = batch.select([0, 1])
    total, gradient, metrics = figures(loss, without(batch, row))
    expected, whole = loss(Outputs(logprob=torch.tensor(LOGPROB[:7])), alone)
    assert total == pytest.approx(expected.item())
    assert metrics == pytest.approx(whole.floats())
    assert gradient[:7].isfinite().all()
    assert gradient[7:].tolist() == [0.0] * 5
    assert count_active(without(batch, row), loss.denominator).item() == 1


def test_judge_pairs_have_the_same_loss_and_separate_metrics() -> None:
    scored = pairs([4.0, 1.0, 1.0, 0.0])
    plain, slope, _ = figures(Preference("dpo", beta=0.5), scored)
    total, gradient, metrics = figures(
        Preference("dpo", beta=0.5),
        scored.with_columns(sample={"judge_pair": torch.tensor([0, 0, 1, 1]).bool()}),
    )
    assert (total, gradient.tolist()) == (plain, slope.tolist())
    assert metrics["loss"] == pytest.approx(total / 2)
    assert (metrics["rewards_chosen_mean"], metrics["judge_pairs/rewards_chosen_mean"]) == (
        0.5,
        0.25,
    )
    assert (metrics["acc"], metrics["judge_pairs/acc"]) == (1.0, 0.0)
    assert (metrics["chosen_lengths"], metrics["judge_pairs/chosen_lengths"]) == (2.0, 1.0)
    assert metrics["judge_pairs/preference_loss"] == pytest.approx(math.log(2))
    assert metrics["chosen_generated_rewards"] == 4.0
    assert "judge_pairs/chosen_generated_rewards" not in metrics
