"""Supervised fine-tuning: maximum likelihood of completions with their stop token; prompts are only read."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.rows import open_demonstrations
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.core.types import Phase
from lockstep.data.answers import is_empty
from lockstep.data.demonstrations import Demonstrations, answer_of
from lockstep.data.files import FileGroup
from lockstep.data.selection import Rule
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.cross_entropy import CrossEntropyLoss


def sft_step(
    step: int,
    position: int,
    *,
    policy: Learner,
    demonstrations: Demonstrations,
    phase: Phase,
    run_length: RunLength,
    seed: int,
) -> StepResult:
    """Runs one optimizer step on the rows from `position` on."""
    count = run_length.count_rows(position)
    with phase("data"):
        batch = demonstrations.at(position, count, seed)
    with phase("policy"):
        metrics = train(policy, batch, CrossEntropyLoss())
    return StepResult(metrics.with_prefix("policy"), position + count, batch.tokens.numel())


def measure_held_out_loss(policy: Learner, batch: Batch) -> Metrics:
    """Cross-entropy per trainable token of held-out rows, nats, and its exponential; no gradients."""
    total = -compute_logprobs(policy, batch, "the policy").double()[batch.mask].sum()
    loss = Mean(total, batch.mask.sum())
    return Metrics(loss=loss, perplexity=Mean((total / batch.mask.sum()).exp()))


def open_sft(recipe: SFTRecipe, setup: Setup) -> Job:
    """Opens the policy and its demonstrations."""
    size, data, files = recipe.sft.global_batch_size, recipe.data, setup.files
    policy = setup.learner(recipe.policy_role)
    held_out = files.validation and _open(files.validation, recipe, setup)
    rows = _open(files.demonstrations, recipe, setup)
    measure = None
    if held_out is not None:
        batch = held_out.first(data.max_validation_samples)
        measure = validate_figures(lambda step: measure_held_out_loss(policy, batch).with_prefix("validation"))
    run_length = measure_run_length(recipe, len(rows), size, trains_rest=True)
    return Job(
        step=partial(
            sft_step,
            policy=policy,
            demonstrations=rows,
            phase=setup.phase,
            run_length=run_length,
            seed=recipe.seed,
        ),
        run_length=run_length,
        state={"policy": policy},
        validate=measure,
        data=describe(rows, "rows"),
        held_out=None if held_out is None else describe(held_out, "rows"),
        arithmetic=f"{size} rows → 1 optimizer step",
    )


def _open(files: FileGroup, recipe: SFTRecipe, setup: Setup) -> Demonstrations:
    data, longest = recipe.data, recipe.sft.max_tokens
    answered = Rule(lambda row: "has an empty answer" if is_empty(answer_of(row, "row", data)) else None, "answered")
    return open_demonstrations(files, data, setup.source, longest, "sft.max_tokens", answered)
