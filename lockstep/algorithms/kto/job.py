"""Setup of KTO."""

from __future__ import annotations

from functools import cache, partial

from lockstep.algorithms.job import Job, Validate
from lockstep.algorithms.kto.options import KTORecipe
from lockstep.algorithms.kto.step import KTOWorkers, ScoredRows, kto_step, measure_held_out_value, mismatch, score_rows
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.rows import open_demonstrations
from lockstep.algorithms.setup import Setup
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.files import FileGroup
from lockstep.data.rows import Row
from lockstep.data.selection import Rule, head
from lockstep.data.templates import read_field
from lockstep.errors import shorten
from lockstep.losses.kto import KTOLoss


def open_kto(recipe: KTORecipe, setup: Setup) -> Job:
    """Opens the policy, the reference policy and the labeled rows."""
    options, data, files = recipe.kto, recipe.data, setup.files
    size, longest = options.global_batch_size, options.max_tokens
    policy, reference = setup.learner(recipe.policy_role), setup.learner(recipe.reference_role)
    held_out = None if files.validation is None else _open(files.validation, recipe, setup, data.limit_val_batches)
    rows = _open(files.train, recipe, setup, data.limit_train_batches)
    workers = KTOWorkers(policy, reference, rows, data.label, setup.phase)
    loss = KTOLoss(options.ref_policy_kl_penalty, (options.desirable_weight, options.undesirable_weight))
    run_length = measure_run_length(recipe, len(rows), size, trains_rest=True)
    return Job(
        step=partial(kto_step, workers=workers, loss=loss, max_tokens=longest, run_length=run_length, seed=recipe.seed),
        run_length=run_length,
        state={"policy": policy},
        validate=None if held_out is None else _validate(recipe, held_out, workers, loss),
        data=describe(rows, "rows"),
        held_out=None if held_out is None else describe(held_out, "rows"),
        arithmetic=f"{size} rows → 1 optimizer step",
    )


def _open(files: FileGroup, recipe: KTORecipe, setup: Setup, batches: float | int | None) -> Demonstrations:
    limit, field = head(batches, recipe.kto.global_batch_size), recipe.data.label

    def fault(row: Row) -> str | None:
        label = read_field(row, field)
        if label is None:
            return f"lacks the field {field!r}, which data.label names"
        if isinstance(label, bool):
            return None
        return f"has in the field {field!r} {shorten(str(label))}, which is neither true nor false"

    rule = Rule(fault, ("label", field))
    return open_demonstrations(files, recipe.data, setup.source, recipe.kto.max_tokens, "kto.max_tokens", limit, rule)


def _validate(recipe: KTORecipe, held_out: Demonstrations, workers: KTOWorkers, loss: KTOLoss) -> Validate | None:
    rows = held_out.read_first(recipe.data.max_validation_samples)
    mismatch(rows, recipe.kto.max_tokens)  # raises now, not at the first validation, if all prompts are equal

    @cache
    def score() -> ScoredRows:
        return score_rows(rows, workers, recipe.kto.max_tokens)

    return validate_figures(
        lambda step: measure_held_out_value(workers.policy, score(), loss).with_prefix("validation")
    )
