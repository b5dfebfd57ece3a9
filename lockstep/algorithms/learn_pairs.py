"""Setup and step of algorithms on pairs of answers: DPO, SimPO, ORPO and reward models.

They differ in the loss, the model that learns, and the use of a reference policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import assert_never

from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.opening import (
    describe,
    measure_run_length,
    validate_figures,
    with_reference,
)
from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.rows import open_pairs
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.supervised import PairsRecipe
from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer
from lockstep.data.answers import build_answer_batch
from lockstep.data.files import FileGroup
from lockstep.data.pairs import PairRows
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.preference import Preference, measure_acc_interval
from lockstep.objectives.pairing import AnswerPair


@dataclass(frozen=True)
class PairStep:
    """One optimizer step on the next pairs.

    Attributes:
        learner: The model that learns: the policy π or a reward model.
        reference: The frozen π_ref; None: not used by the loss.
        pairs: The pairs; the sample log shows the first of each step.
        phase: Times the phases.
    """

    recipe: PairsRecipe
    learner: Learner
    reference: Learner | None
    pairs: PairRows
    phase: PhaseTimer
    loss: Loss
    run_length: RunLength

    def __call__(self, step: int, position: int) -> StepResult:
        seed = self.recipe.seed
        count = self.run_length.count_rows(position)
        with self.phase("data"):
            batch = build_answer_batch(self.pairs.read_at(position, count, seed))  # x, y_w ≻ y_l
        if self.reference is not None:
            with self.phase("reference"):
                batch = with_reference(batch, self.reference)  # log π_ref(y | x)
        with self.phase(self.recipe.trained_role.name):
            metrics = train(self.learner, batch, self.loss)
        logged = min(self.recipe.run.num_logged_samples, count)
        shown = self.pairs.render_pairs(position, logged, seed)
        return StepResult(
            metrics.with_prefix("train"), position + count, batch.tokens.numel(), shown
        )

    def measure_held_out(self, batch: Batch) -> Metrics:
        """Training metrics on held-out pairs, with the 95 % interval of `acc`; no gradients."""
        head = self.recipe.trained_role.head
        match head:
            case "logits":
                outputs = Outputs(logprob=compute_logprobs(self.learner, batch, "the policy"))
            case "reward" | "value":
                _, reward_B = self.learner.values(batch)
                require_finite("the reward model's scores", batch, reward_B)
                outputs = Outputs(final_value=reward_B)
            case _:
                assert_never(head)
        _, metrics = self.loss(outputs, batch)
        return metrics + measure_acc_interval(metrics)


def open_pair_job(recipe: PairsRecipe, setup: Setup, loss: Loss) -> Job:
    """Opens the models and the pairs."""
    role = recipe.trained_role
    files = setup.files
    learner = setup.learner(role)
    if recipe.reference_role is None:
        reference = None
    else:
        reference = setup.learner(recipe.reference_role)
    if files.validation is None:
        held_out = None
    else:
        held_out = _open_pair_rows(files.validation, recipe, setup)
    pairs = _open_pair_rows(files.train, recipe, setup)
    run_length = measure_run_length(
        recipe, len(pairs), recipe.pairs.global_batch_size, trains_rest=True
    )
    step = PairStep(recipe, learner, reference, pairs, setup.phase, loss, run_length)
    validate = None
    if held_out is not None:
        batch = build_answer_batch(held_out.read_first(recipe.data.max_validation_samples))

        @cache
        def score_held_out() -> Batch:
            return batch if reference is None else with_reference(batch, reference)

        validate = validate_figures(
            lambda _: step.measure_held_out(score_held_out()).with_prefix("validation")
        )
    return Job(
        step=step,
        run_length=run_length,
        state={role.name: learner},
        validate=validate,
        data=describe(pairs, "pairs"),
        held_out=None if held_out is None else describe(held_out, "pairs"),
    )


def _open_pair_rows(files: FileGroup, recipe: PairsRecipe, setup: Setup) -> PairRows:
    return open_pairs(
        files, recipe.data, setup.source, recipe.pairs.max_tokens, recipe.length_option
    )


def list_answers(batch: Batch) -> list[tuple[int, ...]]:
    """The tokens of each answer that the policy sampled."""
    sequences = zip(batch.sequences(), batch.sequences("mask"), strict=True)
    return [tuple(sequence[mask].tolist()) for sequence, mask in sequences]


def select_pairs(answers: Batch, pairs: Sequence[AnswerPair], group: int) -> Batch:
    """Builds a batch of chosen and rejected answers, next to each other, with their scores.

    Training uses the policy at temperature 1 over all tokens, not the sampling distribution.

    Args:
        answers: `group` answers to each prompt, with their `score`.
        pairs: One pair per prompt.
        group: Number of answers per prompt.
    """
    rows: list[int] = []
    for number, pair in enumerate(pairs):
        if pair.chosen is not None and pair.rejected is not None:
            first = number * group
            rows += [first + pair.chosen, first + pair.rejected]
    batch = answers.select(rows)
    return Batch(
        batch.tokens, batch.lengths, {"mask": batch.mask}, {"score": batch["score"]}, group_size=2
    )


def build_preference_loss(section: PreferenceSection, beta: float) -> Preference:
    """Builds the loss of a recipe; β is separate because it may change during a run."""
    by_length = section.preference_average_log_probs
    return Preference(
        kind=section.preference_loss,
        beta=beta,
        length_normalized=by_length,
        gt_reward_scale=section.gt_reward_scale,
        preference_coef=section.preference_loss_weight,
        sft_coef=section.sft_loss_weight,
        sft_length_normalized=by_length
        if section.sft_average_log_probs is None
        else section.sft_average_log_probs,
        label_smoothing=section.label_smoothing,
    )
