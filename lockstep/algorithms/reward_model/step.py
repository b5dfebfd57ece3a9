"""Reward models (Ouyang et al. 2022, §3.5): the chosen answer is to score higher than the rejected one.

Bradley and Terry (1952): P(y_w ≻ y_l | x) = σ(r(x, y_w) − r(x, y_l)), whose likelihood is maximized.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.algorithms.step import RunLength, StepResult
from lockstep.batch import Batch
from lockstep.borders import require_finite
from lockstep.data.pairs import Pairs
from lockstep.learners.base import Learner, train
from lockstep.losses.base import Outputs
from lockstep.losses.preference import interval_of_acc
from lockstep.losses.reward import BradleyTerry
from lockstep.metrics import Metrics
from lockstep.types import Phase


@dataclass(frozen=True)
class RewardModelWorkers:
    """Models and data of a step: r, and the pairs; the sample log shows the first of each step."""

    reward_model: Learner
    pairs: Pairs
    phase: Phase
    num_logged_samples: int


def reward_model_step(
    step: int, position: int, workers: RewardModelWorkers, loss: BradleyTerry, run_length: RunLength, seed: int
) -> StepResult:
    """Runs one optimizer step on the pairs from `position` on."""
    count = run_length.count_rows(position)
    with workers.phase("data"):
        batch = workers.pairs.at(position, count, seed)  # x, y_w ≻ y_l
    with workers.phase("reward_model"):
        metrics = train(workers.reward_model, batch, loss)
    shown = workers.pairs.render(position, min(workers.num_logged_samples, count), seed)
    return StepResult(metrics.with_prefix("train"), position + count, batch.tokens.numel(), shown)


def measure_held_out_pairs(reward_model: Learner, batch: Batch, loss: BradleyTerry) -> Metrics:
    """Metrics of training on held-out pairs, and the 95 % interval of `acc`; no gradients."""
    _, reward_B = reward_model.values(batch)
    require_finite("the reward model's scores", batch, reward_B)
    _, metrics = loss(Outputs(final_value=reward_B), batch)
    return metrics + interval_of_acc(metrics)
