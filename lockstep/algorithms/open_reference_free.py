"""Setup and step of algorithms that learn from pairs of answers without a reference policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lockstep.algorithms.job import Job, Validate
from lockstep.algorithms.open_pairs import open_held_out_pairs, open_train_pairs
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.reference_free import ReferenceFreeRecipe
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.step import RunLength, StepResult
from lockstep.data.pairs import Pairs
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.preference import interval_of_acc
from lockstep.metrics import Metrics
from lockstep.types import Phase


@dataclass(frozen=True)
class PairWorkers:
    """Model and data of a step: π, and the pairs; the sample log shows the first of each step."""

    policy: Learner
    pairs: Pairs
    phase: Phase
    num_logged_samples: int


def open_reference_free(recipe: ReferenceFreeRecipe, setup: Setup, loss: Loss) -> Job:
    """Opens the policy and the pairs."""
    policy, size = setup.learner(recipe.policy_role), recipe.pairs.global_batch_size
    held_out, pairs = open_held_out_pairs(recipe, setup), open_train_pairs(recipe, setup)
    workers = PairWorkers(policy, pairs, setup.phase, recipe.run.num_logged_samples)
    run_length = measure_run_length(recipe, len(pairs), size, trains_rest=True)
    return Job(
        step=partial(reference_free_step, workers=workers, loss=loss, run_length=run_length, seed=recipe.seed),
        run_length=run_length,
        state={"policy": policy},
        validate=None if held_out is None else _validate(recipe, held_out, policy, loss),
        data=describe(pairs, "pairs"),
        held_out=None if held_out is None else describe(held_out, "pairs"),
        arithmetic=f"{size} pairs → 1 optimizer step",
    )


def reference_free_step(
    step: int, position: int, workers: PairWorkers, loss: Loss, run_length: RunLength, seed: int
) -> StepResult:
    """Runs one optimizer step on the pairs from `position` on."""
    count = run_length.count_rows(position)
    with workers.phase("data"):
        batch = workers.pairs.at(position, count, seed)  # x, y_w ≻ y_l
    with workers.phase("policy"):
        metrics = train(workers.policy, batch, loss)
    shown = workers.pairs.render(position, min(workers.num_logged_samples, count), seed)
    return StepResult(metrics.with_prefix("train"), position + count, batch.tokens.numel(), shown)


def _validate(recipe: ReferenceFreeRecipe, pairs: Pairs, policy: Learner, loss: Loss) -> Validate | None:
    batch = pairs.first(recipe.data.max_validation_samples)

    def measure(step: int) -> Metrics:
        _, metrics = loss(Outputs(logprob=compute_logprobs(policy, batch, "the policy")), batch)
        return (metrics + interval_of_acc(metrics)).with_prefix("validation")

    return validate_figures(measure)
