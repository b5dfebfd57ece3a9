"""Setup of direct preference optimization."""

from __future__ import annotations

from functools import cache, partial

from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.dpo.step import DPOWorkers, dpo_step, measure_held_out_preference
from lockstep.algorithms.job import Job, Validate
from lockstep.algorithms.open_pairs import open_held_out_pairs, open_train_pairs
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.reference import with_reference
from lockstep.algorithms.setup import Setup
from lockstep.batch import Batch
from lockstep.data.pairs import Pairs
from lockstep.losses import preference
from lockstep.losses.preference import Preference


def open_dpo(recipe: DPORecipe, setup: Setup) -> Job:
    """Opens the policy, the reference policy and the pairs."""
    policy, reference = setup.learner(recipe.policy_role), setup.learner(recipe.reference_role)
    held_out, pairs = open_held_out_pairs(recipe, setup), open_train_pairs(recipe, setup)
    workers = DPOWorkers(policy, reference, pairs, setup.phase, recipe.run.num_logged_samples)
    loss, size = preference.build(recipe.dpo, recipe.dpo.ref_policy_kl_penalty), recipe.dpo.global_batch_size
    run_length = measure_run_length(recipe, len(pairs), size, trains_rest=True)
    return Job(
        step=partial(dpo_step, workers=workers, loss=loss, run_length=run_length, seed=recipe.seed),
        run_length=run_length,
        state={"policy": policy},
        validate=None if held_out is None else _validate(recipe, held_out, workers, loss),
        data=describe(pairs, "pairs"),
        held_out=None if held_out is None else describe(held_out, "pairs"),
        arithmetic=f"{size} pairs → 1 optimizer step",
    )


def _validate(recipe: DPORecipe, pairs: Pairs, workers: DPOWorkers, loss: Preference) -> Validate | None:
    rows = pairs.first(recipe.data.max_validation_samples)

    @cache
    def score_references() -> Batch:
        return with_reference(rows, workers.reference)

    return validate_figures(
        lambda step: measure_held_out_preference(workers.policy, score_references(), loss).with_prefix("validation")
    )
