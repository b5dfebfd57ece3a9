"""Distillation: Hinton et al. 2015, on the student's own rollouts as in Agarwal et al. 2024, Algorithm 1.

At every token the student learns the teacher's distribution. On-policy the sequences are the student's own rollouts,
so it learns to recover from its own mistakes; off-policy they are the data's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lockstep.algorithms.distill.options import DistillRecipe, DistillSection
from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.opening import (
    build_agreement,
    build_engine,
    describe,
    describe_updates,
    measure_answers,
    measure_run_length,
    open_held_out,
    validate_figures,
)
from lockstep.algorithms.policy_gradient.step import minibatches
from lockstep.algorithms.rows import open_demonstrations, open_prompts
from lockstep.algorithms.setup import Setup
from lockstep.config.model_recipe import weights_of
from lockstep.core.batch import Batch
from lockstep.core.borders import require_logprobs
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.core.types import Phase, SamplingParams
from lockstep.data.demonstrations import Demonstrations, batch_of
from lockstep.data.prompts import Prompts
from lockstep.data.selection import Rule
from lockstep.data.templates import read_field
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.distill import Distillation
from lockstep.models.folder import read_config
from lockstep.monitor.agreement import Agreement
from lockstep.rewards.base import NoReward
from lockstep.rewards.row_rules import NO_ANSWERS
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True)
class Sequences:
    """The sequences that a step learns from.

    Attributes:
        batch: Sequences; the mask marks the tokens that are learned.
        rows: The data row of each sequence.
        metrics: Metrics of their sampling.
        samples: The first sequences, as JSON types.
    """

    batch: Batch
    rows: Sequence[Mapping[str, Any]]
    metrics: Metrics
    samples: list[dict[str, Any]]


@dataclass(frozen=True)
class DistillWorkers:
    """Models and data of a step: the student π, its teachers, and the source of sequences, by step and position."""

    policy: Learner
    teachers: Mapping[str, Learner]
    sequences: Callable[[int, int], Sequences]
    phase: Phase


@dataclass(frozen=True)
class DistillSettings:
    """The options of the recipe, ready for use in the step.

    Attributes:
        run_length: How many rows a step takes.
        vocabulary: Size of the vocabulary.
        seed: Seed of the order within a step.
    """

    options: DistillSection
    run_length: RunLength
    vocabulary: int
    seed: int
    loss: Distillation


def distill_step(step: int, position: int, workers: DistillWorkers, settings: DistillSettings) -> StepResult:
    """One iteration: take sequences, score each token by the teachers, and learn their distributions."""
    found = workers.sequences(step, position)  # y ~ π(·|x), or from the data
    batch = add_teacher_logprobs(found.batch, found.rows, workers, settings)
    metrics = found.metrics
    for minibatch in minibatches(batch, settings.options.global_batch_size, settings.seed, step):
        with workers.phase("policy"):
            metrics += train(workers.policy, minibatch, settings.loss).with_prefix("policy")
    end = position + settings.run_length.count_rows(position)
    return StepResult(metrics, end, batch.tokens.numel(), found.samples)


def add_teacher_logprobs(
    batch: Batch, rows: Sequence[Mapping[str, Any]], workers: DistillWorkers, settings: DistillSettings
) -> Batch:
    """Adds each teacher's top tokens and their log-probabilities in the position of each token, [N, K].

    With the whole vocabulary, the student's distribution is whole too, and the ids of the tokens are left out.
    Both distributions are the models' own, before any shaping of the one that was sampled from.
    """
    k, whole = settings.options.top_k or settings.vocabulary, settings.vocabulary
    with workers.phase("teachers"):
        token_NK, logprob_NK = _topk_of_teachers(batch, rows, workers, settings.options.teacher_field, k)
    require_logprobs("the teacher", batch, logprob_NK)
    columns = {"mask": batch.mask, "teacher_logprob": logprob_NK}
    if k == whole:
        return replace(batch, token=columns, sample={}, sampling=None, top_k=whole)
    return replace(batch, token={**columns, "top_token": token_NK}, sample={}, sampling=None)


def _topk_of_teachers(
    batch: Batch, rows: Sequence[Mapping[str, Any]], workers: DistillWorkers, field: str | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k tokens that the row's teacher ranks highest in each position, and their log-probabilities, [N, K]."""
    if field is None:
        return next(iter(workers.teachers.values())).topk(batch, k)
    token_NK = torch.zeros(batch.tokens.numel(), k, dtype=torch.int64)
    logprob_NK = torch.zeros(batch.tokens.numel(), k)
    for name, teacher in workers.teachers.items():
        own = torch.tensor([read_field(row, field) == name for row in rows])
        if bool(own.any()):
            here_N = own[batch.row]
            token_NK[here_N], logprob_NK[here_N] = teacher.topk(batch.select(own.nonzero().squeeze(-1)), k)
    return token_NK, logprob_NK


def sample_sequences(
    step: int,
    position: int,
    *,
    policy: Learner,
    collector: RolloutCollector,
    sampling: SamplingParams,
    options: DistillSection,
    run_length: RunLength,
    num_logged_samples: int,
    phase: Phase,
    agreement: Agreement,
) -> Sequences:
    """Responses of the student by its current weights, and the agreement of its learner and sampler on them."""
    count = run_length.count_rows(position)
    with phase("generate"), collector.engine.at(step) as refitted:
        rollouts = collector.collect(position, count, sampling, options.num_generations)
    batch = rollouts.batch
    with phase("logprobs"):
        old_logprob_N = compute_logprobs(policy, batch, "the policy")
    shown = batch.with_columns({"old_logprob": old_logprob_N}, {"shaped_score": batch["score"].nan_to_num(0.0)})
    with phase("watch"):
        metrics = agreement.compare(step + 1, step, shown)
    metrics += rollouts.lengths().with_prefix("train") + refitted
    samples = sample_rows(rollouts, shown, collector, num_logged_samples)
    return Sequences(batch, [prompt.row for prompt in rollouts.prompts], metrics, samples)


def read_sequences(
    step: int, position: int, *, demonstrations: Demonstrations, run_length: RunLength, seed: int, phase: Phase
) -> Sequences:
    """Rows of the data with their answers, as sequences."""
    with phase("data"):
        found = demonstrations.read(position, run_length.count_rows(position), seed)
    return Sequences(batch_of(found), [row.prompt.row for row in found], Metrics(), [])


_BYTES = 8 + 4
"""Bytes per token that a teacher names in a position: its id, int64, and its log-probability, fp32."""


def open_distill(recipe: DistillRecipe, setup: Setup) -> Job:
    """Opens the student, the teachers, and the sequences."""
    options = recipe.distill
    _require_top_k(recipe, setup)
    policy, teachers = setup.learner(recipe.policy_role), _open_teachers(recipe, setup)
    engine = None
    if recipe.sampling is not None or recipe.validation_sampling is not None:
        engine = build_engine(setup, policy, setup.sampler(policy))
    agreement = None
    if options.on_policy and engine is not None:
        agreement = build_agreement(recipe, setup, policy, engine)
    held_out = open_held_out(recipe, setup, recipe.validation_reward)
    rows = _open_rows(recipe, setup)
    run_length = measure_run_length(recipe, len(rows), options.num_prompts_per_step, trains_rest=True)
    measure = None
    if engine is not None and held_out is not None:
        collector = RolloutCollector(engine, held_out, NoReward(), setup.source.decode, recipe.seed)
        reward, asked = recipe.validation_reward, recipe.validation_sampling
        measure = measure_answers(recipe, setup, held_out, collector, asked, None, own=reward)
    if isinstance(rows, Demonstrations):
        sequences = partial(
            read_sequences, demonstrations=rows, run_length=run_length, seed=recipe.seed, phase=setup.phase
        )
    else:
        assert recipe.sampling is not None, "the recipe says how the student answers"
        assert engine is not None, "so there is a sampler"
        assert agreement is not None, "which is compared with the learner"
        sequences = partial(
            sample_sequences,
            policy=policy,
            collector=RolloutCollector(engine, rows, NoReward(), setup.source.decode, recipe.seed),
            sampling=setup.source.sampling(recipe.sampling),
            options=options,
            run_length=run_length,
            num_logged_samples=recipe.run.num_logged_samples,
            phase=setup.phase,
            agreement=agreement,
        )
    workers = DistillWorkers(policy, teachers, sequences, setup.phase)
    loss = Distillation(options.kl_type, options.mixed_kl_weight, options.zero_outside_topk)
    settings = DistillSettings(options, run_length, setup.source.vocabulary, recipe.seed, loss)
    return Job(
        step=partial(distill_step, workers=workers, settings=settings),
        run_length=run_length,
        state={"policy": policy},
        validate=validate_figures(measure),
        data=describe(rows, "rows" if isinstance(rows, Demonstrations) else "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        arithmetic=_arithmetic(recipe),
        agreement=agreement,
    )


def _require_top_k(recipe: DistillRecipe, setup: Setup) -> None:
    """Raises InputError if teachers are asked for more tokens than the vocabulary has, or than memory holds."""
    load, vocabulary = recipe.largest_step, setup.source.vocabulary
    count = recipe.distill.top_k or vocabulary
    if count > vocabulary:
        raise InputError(
            f"distill.top_k={count}, but the student has {vocabulary} tokens; leave top_k out to compare all of them"
        )
    places = load.scored * load.sequence
    setup.hold(
        f"teachers name {count:,} tokens in the place of each of at most {places:,}",
        _BYTES * places * count,
        "set distill.top_k=64, or lower distill.num_prompts_per_step",
    )


def _open_teachers(recipe: DistillRecipe, setup: Setup) -> dict[str, Learner]:
    """Opens the teachers.

    Raises:
        InputError: One has another tokenizer than the student.
    """
    vocabulary = setup.source.vocabulary
    for section in recipe.teachers.values():
        folder = weights_of(section.path)
        rows = int(read_config(folder).get_text_config().vocab_size)
        if rows != vocabulary:
            raise InputError(
                f"the teacher in {folder} writes {rows} tokens, the student in {setup.source.folder} {vocabulary}, so "
                "their distributions cannot be compared; bring models with vocab_size alike"
            )
    return {name: setup.learner(role) for name, role in recipe.teacher_roles.items()}


def _open_rows(recipe: DistillRecipe, setup: Setup) -> Prompts | Demonstrations:
    """Opens prompts for the student's rollouts, or rows with answers."""
    data, longest, rule, files = recipe.data, recipe.distill.max_tokens, _has_teacher(recipe), setup.files
    if longest is None:
        return open_prompts(files.train, data, setup.source.tokenizer, rule)
    return open_demonstrations(files.demonstrations, data, setup.source, longest, "distill.max_tokens", rule)


def _arithmetic(recipe: DistillRecipe) -> str:
    """Describes how rows become optimizer steps."""
    its = recipe.distill
    updates = f"{describe_updates(its.updates)} of {its.global_batch_size}"
    if not its.on_policy:
        return f"{its.responses} rows → {updates}"
    return (
        f"{its.num_prompts_per_step} prompts × {its.num_generations} = {its.responses} responses → {updates} responses"
    )


def _has_teacher(recipe: DistillRecipe) -> Rule:
    field, known = recipe.distill.teacher_field, tuple(recipe.teachers)
    if field is None:
        return NO_ANSWERS

    def fault(row: Mapping[str, Any]) -> str | None:
        named = read_field(row, field)
        if named in known:
            return None
        return f"names in the field {field!r} the teacher {named!r}; this recipe has: {', '.join(known)}"

    return replace(NO_ANSWERS, fault=fault, key=("teacher", field, known))
