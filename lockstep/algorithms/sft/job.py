"""Supervised fine-tuning: cross-entropy on completions and stop tokens, not on prompts."""

from __future__ import annotations

from functools import partial

from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_answers import open_answers, sft_step
from lockstep.algorithms.opening import describe, measure_run_length, validate_figures
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics
from lockstep.data.answers import build_answer_batch
from lockstep.data.demonstrations import DemonstrationRows, TurnRows
from lockstep.learners.base import Learner, compute_logprobs


def measure_held_out_loss(policy: Learner, batch: Batch) -> Metrics:
    """Held-out cross-entropy per trainable token, nats, and perplexity; no gradients."""
    total = -compute_logprobs(policy, batch, "the policy").double()[batch.mask].sum()
    loss = Mean(total, batch.mask.sum())
    return Metrics(loss=loss, perplexity=Mean((total / batch.mask.sum()).exp()))


def open_sft(recipe: SFTRecipe, setup: Setup) -> Job:
    """Opens the policy and its demonstrations."""
    size = recipe.sft.global_batch_size
    data = recipe.data
    files = setup.files
    policy = setup.learner(recipe.policy_role)
    longest = recipe.sft.max_tokens
    kind = TurnRows if recipe.sft.all_turns else DemonstrationRows
    held_out = None
    if files.validation is not None:
        held_out = open_answers(setup, files.validation, data, longest, "sft.max_tokens", kind)
    rows = open_answers(setup, files.demonstrations, data, longest, "sft.max_tokens", kind)
    measure = None
    if held_out is not None:
        batch = build_answer_batch(held_out.read_first(data.max_validation_samples))
        measure = validate_figures(
            lambda step: measure_held_out_loss(policy, batch).with_prefix("validation")
        )
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
    )
