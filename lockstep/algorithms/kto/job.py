"""KTO (Ethayarajh et al. 2024): learning from answers labeled good or bad, without pairs.

The reference point z0 is the KL of the policy from its reference, estimated over mismatched pairs:
each prompt of the batch with the answer of the next row. It is measured once per batch before the
update and passed to the loss as a number, so it has no gradient and does not depend on
micro-batches or ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import torch

from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.kto.options import KTORecipe
from lockstep.algorithms.opening import (
    describe,
    measure_run_length,
    validate_figures,
    with_reference,
)
from lockstep.algorithms.rows import open_demonstrations
from lockstep.algorithms.setup import Setup
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError, shorten_text
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer
from lockstep.data.answers import AnsweredRow, build_answer_batch
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.files import FileGroup
from lockstep.data.rows import DataRow
from lockstep.data.selection import RowRule
from lockstep.data.templates import read_field
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.base import Outputs
from lockstep.losses.kto import KTOLoss
from lockstep.objectives.kto import estimate_reference_point
from lockstep.objectives.masks import zero_outside_mask


@dataclass(frozen=True)
class ScoredRows:
    """Labeled rows and mismatched rows with the reference policy's log-probabilities."""

    own: Batch
    mismatched: Batch


@dataclass(frozen=True)
class KTOStep:
    """One optimizer step on the next rows.

    Attributes:
        policy: π.
        reference: The frozen π_ref.
        rows: The data.
    """

    policy: Learner
    reference: Learner
    rows: DemonstrationRows
    recipe: KTORecipe
    phase: PhaseTimer
    loss: KTOLoss
    run_length: RunLength

    def __call__(self, step: int, position: int) -> StepResult:
        """Runs the step.

        A smaller last step adds earlier rows, so that every step measures the reference point on
        the same number of rows.
        """
        end = position + self.run_length.count_rows(position)
        size = self.run_length.rows_per_step
        with self.phase("data"):
            rows = self.rows.read_at(end - size, size, self.recipe.seed)  # x, y, good or bad
        with self.phase("reference"):
            scored = self.score_rows(rows, position - end)  # log π_ref(y | x), log π_ref(y' | x)
        with self.phase("kl"):
            loss = self.with_reference_point(scored.mismatched)
        with self.phase("policy"):
            metrics = train(self.policy, scored.own, loss)
        return StepResult(metrics.with_prefix("train"), end, scored.own.tokens.numel())

    def score_rows(self, rows: Sequence[AnsweredRow], first: int = 0) -> ScoredRows:
        """Builds the batches of rows and scores them by the frozen reference policy.

        Args:
            rows: Labeled rows.
            first: Index of the first row to use with its own answer; all rows are used mismatched.
        """
        labeled = rows[first:]
        label = self.recipe.data.label
        label_B = torch.tensor([read_field(row.prompt.row, label) for row in labeled])
        own = build_answer_batch(labeled).with_columns(sample={"desirable": label_B})
        mismatched = build_answer_batch(mismatch_completions(rows, self.recipe.kto.max_tokens))
        return ScoredRows(
            with_reference(own, self.reference), with_reference(mismatched, self.reference)
        )

    def with_reference_point(self, mismatched: Batch) -> KTOLoss:
        """Builds the loss with the current policy's z0, estimated over all mismatched rows."""
        logprob_N = compute_logprobs(self.policy, mismatched, "the policy")
        ratio_N = zero_outside_mask(logprob_N - mismatched["ref_logprob"], mismatched.mask)
        return replace(self.loss, point=estimate_reference_point(mismatched.per_sample(ratio_N)))

    def measure_held_out(self, scored: ScoredRows) -> Metrics:
        """Training metrics on held-out rows with their own reference point; no gradients."""
        loss = self.with_reference_point(scored.mismatched)
        _, metrics = loss(
            Outputs(logprob=compute_logprobs(self.policy, scored.own, "the policy")), scored.own
        )
        return metrics


def mismatch_completions(rows: Sequence[AnsweredRow], max_tokens: int) -> list[AnsweredRow]:
    """Gives each prompt the completion of the next row (cyclically) with a different prompt.

    A completion is truncated if its sequence would exceed `max_tokens`.

    Raises:
        InputError: If all rows have the same prompt.
    """
    found: list[AnsweredRow] = []
    for i, row in enumerate(rows):
        after = chain(rows[i + 1 :], rows[:i])
        other = next((one for one in after if one.prompt.tokens != row.prompt.tokens), None)
        if other is None:
            raise InputError(
                f"all {len(rows)} rows of a step or validation have the same prompt, but KTO's "
                "reference point needs two prompts; set data.shuffle=true, or raise "
                "kto.global_batch_size or data.max_validation_samples"
            )
        found.append(
            replace(row, answers=(other.answers[0][: max_tokens - len(row.prompt.tokens)],))
        )
    return found


def open_kto(recipe: KTORecipe, setup: Setup) -> Job:
    """Opens the policy, the reference policy and the labeled rows."""
    options = recipe.kto
    files = setup.files
    policy = setup.learner(recipe.policy_role)
    reference = setup.learner(recipe.frozen_reference)
    if files.validation is None:
        held_out = None
    else:
        held_out = _open_labeled_rows(files.validation, recipe, setup)
    rows = _open_labeled_rows(files.train, recipe, setup)
    loss = KTOLoss(
        options.ref_policy_kl_penalty, (options.desirable_weight, options.undesirable_weight)
    )
    run_length = measure_run_length(recipe, len(rows), options.global_batch_size, trains_rest=True)
    step = KTOStep(policy, reference, rows, recipe, setup.phase, loss, run_length)
    validate = None
    if held_out is not None:
        held_out_rows = held_out.read_first(recipe.data.max_validation_samples)
        # raises now, before the first validation, if all prompts are equal
        mismatch_completions(held_out_rows, options.max_tokens)
        score_held_out = cache(lambda: step.score_rows(held_out_rows))
        validate = validate_figures(
            lambda _: step.measure_held_out(score_held_out()).with_prefix("validation")
        )
    return Job(
        step=step,
        run_length=run_length,
        state={"policy": policy},
        validate=validate,
        data=describe(rows, "rows"),
        held_out=None if held_out is None else describe(held_out, "rows"),
    )


def _open_labeled_rows(files: FileGroup, recipe: KTORecipe, setup: Setup) -> DemonstrationRows:
    field = recipe.data.label

    def describe_label_fault(row: DataRow) -> str | None:
        label = read_field(row, field)
        if label is None:
            return f"lacks the field {field!r} set in data.label"
        if isinstance(label, bool):
            return None
        return f"field {field!r} is {shorten_text(json.dumps(label))}, expected true or false"

    rule = RowRule(describe_label_fault, ("label", field))
    return open_demonstrations(
        files, recipe.data, setup.source, recipe.kto.max_tokens, "kto.max_tokens", rule
    )
