"""What a step of PPO hands to its learners: each option must arrive there, alone, and unchanged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tabular import OnePrompt, TabularLearner, TabularSampler
from tabular_ppo import ppo_step, recipe, share_of_ones

from lockstep.algorithms.policy_gradient.options import KL, AdaptiveKL
from lockstep.algorithms.policy_gradient.step import KLCoefficient, build_settings
from lockstep.algorithms.ppo.options import PPOSection
from lockstep.algorithms.ppo.step import PPOWorkers, with_advantages
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import Request, SamplingParams, skip_timing
from lockstep.learners.base import Learner
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession


class Witness(TabularLearner):
    """Remembers what it was trained on."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.batches: list[Batch] = []
        self.losses: list[Loss] = []

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        self.batches.append(batch)
        self.losses.append(loss)
        return super().forward_backward(batch, loss)


TILT = torch.tensor([1.5, -1.5, 0.5, -0.5])


def tilted(lr: float = 0.0) -> TabularLearner:
    """A learner whose distribution is not uniform."""
    learner = TabularLearner(lr)
    with torch.no_grad():
        learner.logits += TILT
    return learner


class Slanted(TabularSampler):
    """Holds the learner's weights, and draws from another distribution."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self.logits = self.logits + TILT
        return super().generate(requests, sampling)


def steps(
    count: int,
    reward: Any = share_of_ones,
    reference: Learner | None = None,
    sampler: Any = None,
    **ppo: Any,
) -> tuple[Witness, Witness, list[int]]:
    """Runs steps on fakes. Returns policy and critic, and the position after each step."""
    policy, critic = Witness(3.0), Witness(0.3)
    engine, prompts = SamplerSession(sampler or TabularSampler(), policy), OnePrompt()
    collector = RolloutCollector(
        engine, prompts, reward, lambda ids: "".join(map(str, ids)), seed=0
    )
    workers = PPOWorkers(
        policy=policy, critic=critic, reference=reference, collector=collector, phase=skip_timing
    )
    rule, positions = build_settings(recipe(**ppo), ()), [0]
    for step in range(count):
        positions.append(ppo_step(step, positions[-1], workers, rule).position)
    return policy, critic, positions


def kl_coefs(policy: Witness) -> list[float]:
    """What the KL divergence weighed in each loss."""
    return [loss.kl_coef for loss in policy.losses if isinstance(loss, ClippedSurrogate)]


def order(batch: Batch) -> list[int]:
    return batch["request"].tolist()


def one_token(advantage: float, ratio: float, weight: float = 1.0) -> Batch:
    """A prompt token and a trained one, which the policy, at log-probability 0, makes `ratio` times
    as likely.
    """
    return Batch(
        torch.zeros(2, dtype=torch.int64),
        torch.tensor([2]),
        {
            "mask": torch.tensor([False, True]),
            "old_logprob": torch.tensor([0.0, -math.log(ratio)]),
            "advantage": torch.tensor([0.0, advantage]),
            "weight": torch.tensor([0.0, weight]),
        },
    )


@pytest.mark.parametrize(
    ("ppo", "advantage", "ratio", "expected"),
    [
        ({"clip": 0.1, "clip_high": 0.4}, 1.0, 1.5, -1.4),
        ({"clip": 0.1, "clip_high": 0.4}, -1.0, 0.7, 0.9),
        ({"clip": 0.1}, 1.0, 1.3, -1.1),
        ({"clip": 0.1, "dual_clip": 3.0}, -1.0, 5.0, 3.0),
    ],
)
def test_ppo_policy_loss_applies_clip_clip_high_and_dual_clip(
    ppo: dict[str, float], advantage: float, ratio: float, expected: float
) -> None:
    batch = one_token(advantage, ratio)
    total, _ = build_settings(recipe(**ppo), ()).policy_loss(Outputs(logprob=torch.zeros(2)), batch)
    assert total.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_value_clip_option_reaches_critic_loss(clip: float | None) -> None:
    _, critic, _ = steps(1, value_clip=clip)
    assert critic.losses == [ClippedValue(clip)] * 2


def test_kl_placed_in_reward_is_subtracted_per_token_and_absent_from_loss() -> None:
    policy, _, _ = steps(1, reference=tilted(), kl={"coef": 0.5, "placement": "reward"})
    batch = policy.batches[0]
    delta = batch["old_logprob"] - batch["ref_logprob"]
    scores = torch.where(batch.position == 4, batch["shaped_score"][batch.row], 0.0)
    torch.testing.assert_close(batch["reward"], scores - 0.5 * delta * batch.mask)
    assert delta[batch.mask].abs().max() > 0.1
    assert all(isinstance(loss, ClippedSurrogate) and loss.kl_coef == 0 for loss in policy.losses)


def test_kl_placed_in_loss_is_absent_from_token_rewards() -> None:
    policy, _, _ = steps(
        1, reference=tilted(), kl={"coef": 0.5, "placement": "loss", "estimator": "k3"}
    )
    batch, loss = policy.batches[0], policy.losses[0]
    assert isinstance(loss, ClippedSurrogate)
    assert (loss.kl_coef, loss.kl_estimator) == (0.5, "k3")
    assert torch.equal(
        batch["reward"][batch.position < 4], torch.zeros(int((batch.position < 4).sum()))
    )


@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_shaped_reward_metric_subtracts_kl_for_both_placements(placement: str) -> None:
    policy, critic = Witness(3.0), Witness(0.3)
    collector = RolloutCollector(
        SamplerSession(TabularSampler(), policy), OnePrompt(), share_of_ones, str, seed=0
    )
    workers = PPOWorkers(
        policy=policy, critic=critic, reference=tilted(), collector=collector, phase=skip_timing
    )
    options = recipe(kl={"coef": 0.5, "placement": placement}, global_batch_size=64)
    found = ppo_step(0, 0, workers, build_settings(options, ())).metrics.floats()
    assert found["train/kl"] != 0
    assert found["train/shaped_reward"] == pytest.approx(
        found["train/reward"] - 0.5 * 4 * found["train/kl"], rel=1e-5
    )


def test_adaptive_kl_coefficient_follows_target_and_is_restored_exactly(tmp_path: Path) -> None:
    kl = {"coef": 0.5, "placement": "loss", "adaptive": {"target": 100.0}}
    policy, _, _ = steps(3, reference=tilted(), kl=kl)
    assert kl_coefs(policy) == pytest.approx([0.5, 0.5, 0.49, 0.49, 0.4802, 0.4802]), (
        "the divergence is far below its target"
    )
    section = KL(coef=0.1, adaptive=AdaptiveKL(target=2.0, gain=1.0))
    coefficient = KLCoefficient(section)
    coefficient.adapt_to_kl(2.2)
    assert coefficient.value == pytest.approx(0.11)
    coefficient.adapt_to_kl(50.0)
    assert coefficient.value == pytest.approx(0.11 * 1.2)
    coefficient.save(tmp_path / "kl")
    restored = KLCoefficient(section)
    restored.load(tmp_path / "absent")
    assert restored.value == 0.1
    restored.load(tmp_path / "kl")
    assert restored.value == coefficient.value, "to the bit"


def test_adaptive_kl_coefficient_is_unchanged_during_critic_warmup() -> None:
    kl = {"coef": 0.5, "placement": "loss", "adaptive": {"target": 100.0}}
    policy, _, _ = steps(3, reference=tilted(), kl=kl, critic_warmup_steps=2)
    assert kl_coefs(policy) == [0.5, 0.5]


def test_ref_logprobs_come_from_reference_model_not_policy() -> None:
    reference = tilted()
    policy, _, _ = steps(2, reference=reference, kl={"coef": 0.5})
    batch = policy.batches[-1]
    assert torch.equal(batch["ref_logprob"], reference.logprobs(batch))
    assert not torch.equal(batch["ref_logprob"], batch["old_logprob"])


def test_minibatches_are_reshuffled_in_every_epoch_and_step() -> None:
    policy, critic, _ = steps(2, ppo_epochs=2)
    assert [order(batch) for batch in policy.batches] == [order(batch) for batch in critic.batches]
    passes = [order(policy.batches[i]) + order(policy.batches[i + 1]) for i in range(0, 8, 2)]
    assert all(sorted(rows) == list(range(64)) for rows in passes)
    assert len({tuple(rows) for rows in passes}) == 4


def test_correction_weights_reach_the_loss() -> None:
    policy, _, _ = steps(1, sampler=Slanted(), correction={"kind": "token_tis", "high": 1.1})
    batch = policy.batches[0]
    ratio = (batch["old_logprob"] - batch["sampler_logprob"]).exp().clamp(max=1.1) * batch.mask
    torch.testing.assert_close(batch["weight"], ratio)
    assert (batch["weight"][batch.mask] < 1.0).any()
    heavy, light = (
        policy.losses[0](Outputs(logprob=torch.zeros(2)), one_token(1.0, 1.0, weight))[0].item()
        for weight in (1.0, 0.5)
    )
    assert light == pytest.approx(heavy / 2)


def test_sequences_beyond_max_sequence_mismatch_are_masked() -> None:
    policy, _, _ = steps(1, sampler=Slanted(), max_sequence_mismatch=1.5, global_batch_size=64)
    batch = policy.batches[0]
    error = (
        (batch["old_logprob"] - batch["sampler_logprob"]).abs().exp().view(64, 5)[:, 1:].mean(-1)
    )
    kept = batch.mask.view(64, 5).any(-1)
    assert torch.equal(kept, error <= 1.5)
    assert kept.any()
    assert not kept.all()


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_critic_warmup_delays_policy_training_by_exactly_its_steps(warmup: int) -> None:
    for count in range(1, 5):
        policy, critic, _ = steps(count, critic_warmup_steps=warmup)
        assert len(critic.batches) == 2 * count
        assert len(policy.batches) == 2 * max(0, count - warmup)


def test_responses_with_none_reward_are_masked_from_training() -> None:
    def undecided(prompts: Any, responses: list[str], answers: Any) -> list[float | None]:
        return [None if response[0] == "1" else 1.0 for response in responses]

    policy, _, _ = steps(
        1,
        reward=undecided,
        reward_scaling={"source": [0, 1], "target": [2, 3]},
        global_batch_size=64,
    )
    batch = policy.batches[0]
    trained = batch.mask.view(64, 5).any(-1)
    assert torch.equal(trained, batch["score"].isfinite())
    assert 0 < trained.sum() < 64
    assert batch["reward"].view(64, 5)[~trained].eq(0).all()


def test_dynamic_sampling_advances_position_by_all_prompts_drawn() -> None:
    def rarely(prompts: Any, responses: list[str], answers: Any) -> list[float | None]:
        return [float(response == "11") for response in responses]

    ppo = {
        "num_prompts_per_step": 8,
        "num_generations": 2,
        "global_batch_size": 16,
        "dynamic_sampling": {},
    }
    policy, _, positions = steps(2, reward=lambda p, r, a: rarely(p, [x[:2] for x in r], a), **ppo)
    scores = policy.batches[0]
    assert len(scores) == 16
    drawn = [after - before for before, after in itertools.pairwise(positions)]
    assert all(count % 8 == 0 for count in drawn)
    assert max(drawn) > 8


VALUES = torch.tensor([0.0, 0.3, 0.1, 0.0, 0.2, 0.6, 0.4])


def credit(**ppo: Any) -> Batch:
    """Two responses, of two tokens and of three, the second cut off where V is ½."""
    batch = Batch(
        torch.zeros(7, dtype=torch.int64),
        torch.tensor([3, 4]),
        {"mask": torch.tensor([0, 1, 1, 0, 1, 1, 1]).bool(), "old_value": VALUES},
        {
            "final_value": torch.tensor([9.0, 0.5]),
            "truncated": torch.tensor([False, True]),
            "shaped_score": torch.ones(2),
        },
    )
    plain = {"num_prompts_per_step": 2, "global_batch_size": 2, "whiten_advantages": False}
    return with_advantages(batch, PPOSection.model_validate({**plain, **ppo}))[0]


def test_policy_lambda_shapes_advantages_and_value_lambda_shapes_returns() -> None:
    batch = credit(gae_lambda_policy=0.0, gae_lambda_value=1.0)
    assert batch["return"].tolist() == pytest.approx([0, 1, 1, 0, 1, 1, 1])
    assert batch["advantage"].tolist() == pytest.approx(
        [0, 0.1 - 0.3, 1 - 0.1, 0, 0.6 - 0.2, 0.4 - 0.6, 1 - 0.4]
    )


def test_length_adaptive_lambda_changes_advantages_not_returns() -> None:
    batch = credit(gae_lambda=1.0, length_adaptive_alpha=1.0)
    assert batch["return"].tolist() == pytest.approx([0, 1, 1, 0, 1, 1, 1])
    short = 0.1 - 0.3 + 0.5 * (1 - 0.1)  # λ = 1 − 1/2
    long = 0.6 - 0.2 + 2 / 3 * (0.4 - 0.6 + 2 / 3 * (1 - 0.4))  # λ = 1 − 1/3
    assert batch["advantage"][[1, 4]].tolist() == pytest.approx([short, long])


def test_final_value_bootstraps_only_truncated_responses_if_enabled() -> None:
    assert credit(gae_lambda=1.0)["return"].tolist() == pytest.approx([0, 1, 1, 0, 1, 1, 1])
    bootstrapped = credit(gae_lambda=1.0, bootstrap_truncated=True)["return"].tolist()
    assert bootstrapped == pytest.approx([0, 1, 1, 0, 1.5, 1.5, 1.5])


def test_whiten_advantages_option_normalizes_advantages_and_keeps_returns() -> None:
    plain, white = (credit(whiten_advantages=on) for on in (False, True))
    chosen = plain["advantage"][plain.mask]
    torch.testing.assert_close(
        white["advantage"][white.mask],
        (chosen - chosen.mean()) / chosen.std(correction=0),
        atol=1e-4,
        rtol=1e-4,
    )
    assert torch.equal(plain["return"], white["return"])
