"""`lockstep train` that learns the environment's words, too: GRPO's gradient on observations, as if they were chosen.

    python -m benchmarks.ladder.observations train RECIPE key=value …

An experiment of the rung `guess`, and no option of the product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.altered import name_runs_apart
from lockstep import cli
from lockstep.algorithms.policy_gradient import step
from lockstep.batch import Batch
from lockstep.learners.base import Learner, train
from lockstep.losses.ppo import ClippedSurrogate
from lockstep.metrics import Metrics


def train_on_all(
    learner: Learner, batch: Batch, loss: ClippedSurrogate, inspect: Callable[[Metrics], None] | None = None
) -> Metrics:
    """One optimizer step on all tokens after the prompt. Observations have their episode's advantage, and ratio 1.

    Nothing is compared with the sampler while it is trained, which has no log-probabilities of observations.
    """
    chosen_N = batch.mask
    after_N = torch.cat([mask.cumsum(0) > 0 for mask in batch.sequences("mask")])
    mean_B = batch.per_sample(batch["advantage"]) / batch.per_sample(chosen_N.float()).clamp(min=1)
    whole = batch.with_columns({"mask": after_N, "advantage": mean_B[batch.row] * after_N})
    old_N = torch.where(chosen_N, batch["old_logprob"], learner.logprobs(whole))
    weight_N = torch.where(chosen_N, batch["weight"], 1.0) * after_N
    unseen = whole.with_columns({"old_logprob": old_N, "weight": weight_N})
    return train(learner, unseen, replace(loss, compares=False), inspect)


step.train = train_on_all
name_runs_apart("benchmarks.ladder.observations", ("grpo",))

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
