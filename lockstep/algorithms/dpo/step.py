"""Direct preference optimization (Rafailov et al. 2023): a policy learns from pairs of answers, without a reward model.

The policy that maximizes a reward less β·KL(π ‖ π_ref) has r(x, y) = β·log π(y | x)/π_ref(y | x) + β·log Z(x). Put into
Bradley and Terry's model of preferences, Z cancels, and what is left to maximize is log σ(β·Δ) (eq. 7).
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.algorithms.reference import with_reference
from lockstep.algorithms.step import RunLength, StepResult
from lockstep.batch import Batch
from lockstep.data.pairs import Pairs
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Outputs
from lockstep.losses.preference import Preference, interval_of_acc
from lockstep.metrics import Metrics
from lockstep.types import Phase


@dataclass(frozen=True)
class DPOWorkers:
    """Models and data of a step: π, the frozen π_ref, and the pairs; the sample log shows the first of each step."""

    policy: Learner
    reference: Learner
    pairs: Pairs
    phase: Phase
    num_logged_samples: int


def dpo_step(
    step: int, position: int, workers: DPOWorkers, loss: Preference, run_length: RunLength, seed: int
) -> StepResult:
    """Runs one optimizer step on the pairs from `position` on."""
    count = run_length.count_rows(position)
    with workers.phase("data"):
        batch = workers.pairs.at(position, count, seed)  # x, y_w ≻ y_l
    with workers.phase("reference"):
        batch = with_reference(batch, workers.reference)  # log π_ref(y | x)
    with workers.phase("policy"):
        metrics = train(workers.policy, batch, loss)
    shown = workers.pairs.render(position, min(workers.num_logged_samples, count), seed)
    return StepResult(metrics.with_prefix("train"), position + count, batch.tokens.numel(), shown)


def measure_held_out_preference(policy: Learner, batch: Batch, loss: Preference) -> Metrics:
    """Metrics of training on held-out pairs, which have their reference log-probabilities, and the 95 % interval of
    `acc`; no gradients."""
    _, metrics = loss(Outputs(logprob=compute_logprobs(policy, batch, "the policy")), batch)
    return metrics + interval_of_acc(metrics)
