"""Distillation: Hinton et al. 2015, on the student's own rollouts as in Agarwal et al. 2024, Algorithm 1.

At every token the student learns the teacher's distribution. On-policy the sequences are the student's own rollouts,
so it learns to recover from its own mistakes; off-policy they are the data's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.algorithms.distill.options import DistillSection
from lockstep.algorithms.policy_gradient.step import minibatches
from lockstep.algorithms.step import RunLength, StepResult
from lockstep.batch import Batch
from lockstep.borders import require_logprobs
from lockstep.data.demonstrations import Demonstrations, batch_of
from lockstep.data.templates import read_field
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.distill import Distillation
from lockstep.metrics import Metrics
from lockstep.monitor.agreement import Agreement
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.samples import sample_rows
from lockstep.types import Phase, SamplingParams


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


@dataclass(frozen=True)
class StudentSequences:
    """Responses of the student by its current weights, and the agreement of its learner and sampler on them."""

    policy: Learner
    collector: RolloutCollector
    sampling: SamplingParams
    options: DistillSection
    run_length: RunLength
    num_logged_samples: int
    phase: Phase
    agreement: Agreement

    def __call__(self, step: int, position: int) -> Sequences:
        count, collector = self.run_length.count_rows(position), self.collector
        with self.phase("generate"), collector.engine.at(step) as refitted:
            rollouts = collector.collect(position, count, self.sampling, self.options.num_generations)
        with self.phase("logprobs"):
            old_logprob_N = compute_logprobs(self.policy, rollouts.batch, "the policy")
        batch = rollouts.batch
        shown = batch.with_columns({"old_logprob": old_logprob_N}, {"shaped_score": batch["score"].nan_to_num(0.0)})
        with self.phase("watch"):
            metrics = self.agreement.compare(step + 1, step, shown)
        metrics += rollouts.lengths().with_prefix("train") + refitted
        samples = sample_rows(rollouts, shown, collector, self.num_logged_samples)
        return Sequences(batch, [prompt.row for prompt in rollouts.prompts], metrics, samples)


@dataclass(frozen=True)
class DataSequences:
    """Rows of the data with their answers, as sequences."""

    demonstrations: Demonstrations
    run_length: RunLength
    seed: int
    phase: Phase

    def __call__(self, step: int, position: int) -> Sequences:
        with self.phase("data"):
            found = self.demonstrations.read(position, self.run_length.count_rows(position), self.seed)
        return Sequences(batch_of(found), [row.prompt.row for row in found], Metrics(), [])
