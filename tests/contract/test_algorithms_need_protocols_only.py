"""PPO runs whole on fakes that implement the protocols: it knows nothing of torch models, processes
or files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tabular import TabularSampler
from tabular_ppo import ppo_step, recipe, workers

from lockstep.algorithms.policy_gradient.step import build_settings
from lockstep.algorithms.ppo.step import PPOSettings
from lockstep.weight_sync.sync import WeightSyncError

Step = Callable[[int], dict[str, float]]


def run(rule: PPOSettings, steps: int) -> list[dict[str, float]]:
    place, position, rows = workers(TabularSampler()), 0, []
    for step in range(steps):
        result = ppo_step(step, position, place, rule)
        position = result.position
        rows.append(result.metrics.floats())
    return rows


def test_ppo_raises_reward_with_fake_sampler_and_learner() -> None:
    rows = run(build_settings(recipe(), ()), 30)
    assert rows[0]["train/reward"] == pytest.approx(0.25, abs=0.08)
    assert rows[-1]["train/reward"] > 0.8
    assert all(row["agreement/max_abs_logprob_diff"] == 0.0 for row in rows)
    assert rows[-1]["weight_sync/version"] == 29


def test_ppo_step_advances_position_by_number_of_prompts() -> None:
    result = ppo_step(0, 100, workers(TabularSampler()), build_settings(recipe(), ()))
    assert result.position == 164
    assert result.samples[0]["id"] == "100"


def test_kl_loss_reduces_reward_gain_of_policy() -> None:
    free = run(build_settings(recipe(), ()), 20)[-1]
    held = run(build_settings(recipe(kl={"coef": 1.0, "placement": "loss"}), ()), 20)[-1]
    assert held["train/reward"] < free["train/reward"] - 0.1


def test_stale_sampler_weights_raise_weight_sync_error() -> None:
    class Stale(TabularSampler):
        def load_weights(self, stream: Any, version: int) -> Any:
            held = self.logits
            super().load_weights(stream, version)
            return super().load_weights([("logits", held)], version)

    for sampler, stale in ((TabularSampler(), False), (Stale(), True)):
        place, rule = workers(sampler), build_settings(recipe(), ())
        ppo_step(0, 0, place, rule)
        with pytest.raises(WeightSyncError, match="logits") if stale else nullcontext():
            ppo_step(1, 64, place, rule)


def test_identical_ppo_steps_give_identical_metrics() -> None:
    one, other = (
        ppo_step(0, 0, workers(TabularSampler()), build_settings(recipe(), ())) for _ in range(2)
    )
    assert one.metrics.floats() == other.metrics.floats()
    assert torch.equal(torch.tensor(one.position), torch.tensor(other.position))
