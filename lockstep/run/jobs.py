"""Jobs: what each algorithm needs around its step, built from a recipe, ready for the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from lockstep.algorithms.distill.job import distill_job
from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.dpo.step import DPOWorkers, dpo_step, held_out_preference, with_reference
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.job import (
    Job,
    Place,
    extent_of,
    learner_of,
    policy_and_reference,
    require_context,
    validation_of,
)
from lockstep.algorithms.policy_gradient.job import policy_gradient_job
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.reward_model.step import RewardModelWorkers, held_out_pairs, reward_model_step
from lockstep.algorithms.rows import open_demonstrations, open_pairs
from lockstep.algorithms.self_rewarding.job import self_rewarding_job
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.algorithms.sft.step import SFTWorkers, held_out_loss, sft_step
from lockstep.batch import Batch
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import TrainingRecipe
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.files import Files
from lockstep.data.pairs import Pairs
from lockstep.data.selection import Head, head
from lockstep.learners.base import Learner
from lockstep.losses import preference
from lockstep.losses.preference import Preference
from lockstep.losses.reward import BradleyTerry
from lockstep.metrics import Metrics
from lockstep.models.source import Source


def job_of(recipe: TrainingRecipe, place: Place) -> Job:
    """Builds the workers of a recipe's algorithm and its step."""
    match recipe:
        case SFTRecipe():
            return _sft(recipe, place)
        case DPORecipe():
            return _dpo(recipe, place)
        case RewardModelRecipe():
            return _reward_model(recipe, place)
        case SelfRewardingRecipe():
            return self_rewarding_job(recipe, place)
        case DistillRecipe():
            return distill_job(recipe, place)
        case PPORecipe() | GRPORecipe():
            return policy_gradient_job(recipe, place)
        case _:
            assert_never(recipe)


def _sft(recipe: SFTRecipe, place: Place) -> Job:
    files, source = place.files, place.source
    require_context(recipe, source)
    size = recipe.sft.global_batch_size
    limit = head(recipe.data.limit_train_batches, size)
    rows = _demonstrations(files.demonstrations, recipe, source, limit)
    spec = LearnerSpec(source.folder, "logits", recipe.learner, recipe.optimizer, recipe.seed)
    policy = learner_of(spec, recipe, place)
    workers = SFTWorkers(policy, rows, place.shown.phase)
    return Job(
        step=lambda step, position: sft_step(step, position, workers, size, recipe.seed),
        extent=extent_of(recipe, len(rows), size),
        learners={"policy": policy},
        validate=validation_of(_held_out_loss(recipe, policy, files.validation, source)),
        arithmetic=f"{len(rows)} rows ({rows.selection.account}); {size} rows → 1 optimizer step",
    )


def _demonstrations(files: Files, recipe: SFTRecipe, source: Source, limit: Head) -> Demonstrations:
    return open_demonstrations(files, recipe.data, source, recipe.sft.max_tokens, "sft.max_tokens", limit)


def _dpo(recipe: DPORecipe, place: Place) -> Job:
    size, pairs = recipe.dpo.global_batch_size, _pairs(recipe, place)
    policy, reference = policy_and_reference(recipe, place)
    workers = DPOWorkers(policy, reference, pairs, place.shown.phase, recipe.run.num_logged_samples)
    loss = preference.build(recipe.dpo, recipe.dpo.ref_policy_kl_penalty)
    return Job(
        step=lambda step, position: dpo_step(step, position, workers, loss, size, recipe.seed),
        extent=extent_of(recipe, len(pairs), size),
        learners={"policy": policy},
        validate=validation_of(_held_out_preference(recipe, workers, loss, place)),
        arithmetic=f"{len(pairs)} pairs ({pairs.selection.account}); {size} pairs → 1 optimizer step",
    )


def _reward_model(recipe: RewardModelRecipe, place: Place) -> Job:
    options, pairs = recipe.reward_model, _pairs(recipe, place)
    spec = LearnerSpec(place.source.folder, "reward", recipe.learner, recipe.optimizer, recipe.seed)
    reward_model = learner_of(spec, recipe, place)
    workers = RewardModelWorkers(reward_model, pairs, place.shown.phase, recipe.run.num_logged_samples)
    loss, size = BradleyTerry(options.margin, options.center_rewards_coefficient), options.global_batch_size
    return Job(
        step=lambda step, position: reward_model_step(step, position, workers, loss, size, recipe.seed),
        extent=extent_of(recipe, len(pairs), size),
        learners={"reward_model": reward_model},
        validate=validation_of(_held_out_pairs(recipe, workers, loss, place)),
        arithmetic=f"{len(pairs)} pairs ({pairs.selection.account}); {size} pairs → 1 optimizer step",
    )


def _held_out_pairs(
    recipe: RewardModelRecipe, workers: RewardModelWorkers, loss: BradleyTerry, place: Place
) -> Callable[[int], Metrics] | None:
    pairs = _held_out(recipe, place)
    if pairs is None:
        return None
    return lambda step: held_out_pairs(workers.reward_model, pairs, loss).prefixed("validation")


def _pairs(recipe: DPORecipe | RewardModelRecipe, place: Place) -> Pairs:
    require_context(recipe, place.source)
    limit = head(recipe.data.limit_train_batches, recipe.pairs.global_batch_size)
    return open_pairs(place.files.train, recipe, place.source, limit)


def _held_out(recipe: DPORecipe | RewardModelRecipe, place: Place) -> Batch | None:
    """The pairs that are not trained on; None where there are none."""
    files, data = place.files.validation, recipe.data
    if files is None:
        return None
    limit = head(data.limit_val_batches, recipe.pairs.global_batch_size)
    return open_pairs(files, recipe, place.source, limit).first(data.max_validation_samples)


def _held_out_loss(
    recipe: SFTRecipe, policy: Learner, files: Files | None, source: Source
) -> Callable[[int], Metrics] | None:
    if files is None:
        return None
    held_out = head(recipe.data.limit_val_batches, recipe.sft.global_batch_size)
    rows = _demonstrations(files, recipe, source, held_out).first(recipe.data.max_validation_samples)
    return lambda step: held_out_loss(policy, rows).prefixed("validation")


def _held_out_preference(
    recipe: DPORecipe, workers: DPOWorkers, loss: Preference, place: Place
) -> Callable[[int], Metrics] | None:
    pairs = _held_out(recipe, place)
    if pairs is None:
        return None
    scored = with_reference(pairs, workers.reference)
    return lambda step: held_out_preference(workers.policy, scored, loss).prefixed("validation")
