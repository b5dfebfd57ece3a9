"""Setup and step of algorithms that learn from pairs of answers: DPO, SimPO, ORPO and reward models.

They differ in the loss, in the model that learns, and in whether a reference policy reads the pairs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import assert_never

from lockstep.algorithms.job import Job, RunLength, StepResult, Validate
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures, with_reference
from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import open_pairs
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.supervised import PairsRecipe
from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite
from lockstep.core.metrics import Metrics
from lockstep.core.types import Phase
from lockstep.data.answers import batch_of
from lockstep.data.files import FileGroup
from lockstep.data.pairs import Pairs
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.preference import Preference, interval_of_acc
from lockstep.objectives.pairing import AnswerPair


@dataclass(frozen=True)
class PairWorkers:
    """Models and data of a step.

    Attributes:
        role: The model that learns: the policy π, or a reward model.
        learner: It.
        reference: The frozen π_ref; None: the loss does not read it.
        pairs: The pairs; the sample log shows the first of each step.
        phase: Times the phases.
        num_logged_samples: Pairs of a step in the sample log.
    """

    role: ModelRole
    learner: Learner
    reference: Learner | None
    pairs: Pairs
    phase: Phase
    num_logged_samples: int


def open_pair_job(recipe: PairsRecipe, setup: Setup, loss: Loss) -> Job:
    """Opens the models and the pairs."""
    role, size, files = recipe.trained_role, recipe.pairs.global_batch_size, setup.files
    learner = setup.learner(role)
    reference = None if recipe.reference_role is None else setup.learner(recipe.reference_role)
    held_out = None if files.validation is None else _open(files.validation, recipe, setup)
    pairs = _open(files.train, recipe, setup)
    workers = PairWorkers(role, learner, reference, pairs, setup.phase, recipe.run.num_logged_samples)
    run_length = measure_run_length(recipe, len(pairs), size, trains_rest=True)
    return Job(
        step=partial(pair_step, workers=workers, loss=loss, run_length=run_length, seed=recipe.seed),
        run_length=run_length,
        state={role.name: learner},
        validate=None if held_out is None else _validate(recipe, held_out, workers, loss),
        data=describe(pairs, "pairs"),
        held_out=None if held_out is None else describe(held_out, "pairs"),
    )


def pair_step(
    step: int, position: int, workers: PairWorkers, loss: Loss, run_length: RunLength, seed: int
) -> StepResult:
    """Runs one optimizer step on the pairs from `position` on."""
    count = run_length.count_rows(position)
    with workers.phase("data"):
        batch = batch_of(workers.pairs.at(position, count, seed))  # x, y_w ≻ y_l
    if workers.reference is not None:
        with workers.phase("reference"):
            batch = with_reference(batch, workers.reference)  # log π_ref(y | x)
    with workers.phase(workers.role.name):
        metrics = train(workers.learner, batch, loss)
    shown = workers.pairs.render(position, min(workers.num_logged_samples, count), seed)
    return StepResult(metrics.with_prefix("train"), position + count, batch.tokens.numel(), shown)


def _open(files: FileGroup, recipe: PairsRecipe, setup: Setup) -> Pairs:
    return open_pairs(files, recipe.data, setup.source, recipe.pairs.max_tokens, recipe.limit)


def _validate(recipe: PairsRecipe, pairs: Pairs, workers: PairWorkers, loss: Loss) -> Validate | None:
    rows = batch_of(pairs.first(recipe.data.max_validation_samples))

    @cache
    def read_rows() -> Batch:
        return rows if workers.reference is None else with_reference(rows, workers.reference)

    return validate_figures(lambda step: _measure(workers, read_rows(), loss).with_prefix("validation"))


def _measure(workers: PairWorkers, batch: Batch, loss: Loss) -> Metrics:
    """Metrics of training on held-out pairs, and the 95 % interval of `acc`; no gradients."""
    _, metrics = loss(_score(workers, batch), batch)
    return metrics + interval_of_acc(metrics)


def _score(workers: PairWorkers, batch: Batch) -> Outputs:
    """Outputs of the model that learns, as the loss reads them."""
    match workers.role.head:
        case "logits":
            return Outputs(logprob=compute_logprobs(workers.learner, batch, "the policy"))
        case "reward" | "value":
            _, reward_B = workers.learner.values(batch)
            require_finite("the reward model's scores", batch, reward_B)
            return Outputs(final_value=reward_B)
        case _:
            assert_never(workers.role.head)


def list_answers(batch: Batch) -> list[tuple[int, ...]]:
    """The tokens of each answer, those that the policy chose."""
    sequences = zip(batch.sequences(), batch.sequences("mask"), strict=True)
    return [tuple(sequence[mask].tolist()) for sequence, mask in sequences]


def select_pairs(answers: Batch, pairs: Sequence[AnswerPair], group: int) -> Batch:
    """The chosen and the rejected answer of each pair, next to each other, with their scores.

    The policy itself is trained, at temperature 1 over all tokens, not the distribution that was sampled from.

    Args:
        answers: `group` answers to each prompt, with their `score`.
        pairs: One for each prompt.
        group: Answers to each prompt.
    """
    rows = [
        prompt * group + place
        for prompt, pair in enumerate(pairs)
        if pair.chosen is not None and pair.rejected is not None
        for place in (pair.chosen, pair.rejected)
    ]
    batch = answers.select(rows)
    return Batch(batch.tokens, batch.lengths, {"mask": batch.mask}, {"score": batch["score"]}, group_size=2)


def build_preference_loss(section: PreferenceSection, beta: float) -> Preference:
    """Builds the loss of a recipe; β apart, since it may change over a run."""
    by_length = section.preference_average_log_probs
    return Preference(
        kind=section.preference_loss,
        beta=beta,
        length_normalized=by_length,
        gt_reward_scale=section.gt_reward_scale,
        preference_coef=section.preference_loss_weight,
        sft_coef=section.sft_loss_weight,
        sft_length_normalized=by_length if section.sft_average_log_probs is None else section.sft_average_log_probs,
        label_smoothing=section.label_smoothing,
    )
