"""Distillation (Hinton et al. 2015), on-policy as in Agarwal et al. 2024, Algorithm 1.

At every token the student learns the teacher's distribution. On-policy, the sequences are the
student's own rollouts, so it learns to recover from its own mistakes; off-policy, they come from
the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.opening import (
    ComparedSampler,
    build_agreement,
    build_engine,
    describe,
    measure_answers,
    measure_run_length,
    open_held_out,
)
from lockstep.algorithms.policy_gradient.step import split_minibatches
from lockstep.algorithms.rows import open_demonstrations, open_prompts
from lockstep.algorithms.setup import Setup
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.batch import Batch
from lockstep.core.borders import require_logprobs
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer
from lockstep.data.answers import build_answer_batch
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.learners.base import Learner, train
from lockstep.losses.distill import Distillation
from lockstep.models.folder import read_config
from lockstep.rewards.base import NoReward
from lockstep.rewards.row_rules import NO_ANSWERS
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True)
class DistillStep:
    """One iteration: get sequences, score each token with the teacher, and learn from the scores.

    Attributes:
        policy: The student π.
        source: Source of sequences: the student's samples or the data.
        vocabulary: Size of the vocabulary.
    """

    policy: Learner
    teacher: Learner
    source: ComparedSampler | DemonstrationRows
    phase: PhaseTimer
    recipe: DistillRecipe
    run_length: RunLength
    vocabulary: int
    loss: Distillation

    def __call__(self, step: int, position: int) -> StepResult:
        count = self.run_length.count_rows(position)
        samples: list[dict[str, Any]] = []
        if isinstance(self.source, DemonstrationRows):
            metrics = Metrics()
            with self.phase("data"):
                batch = build_answer_batch(self.source.read_at(position, count, self.recipe.seed))
        else:
            rollouts, answers, metrics = self.source(step, position, count)  # y ~ π(·|x)
            batch = rollouts.batch
            metrics += rollouts.lengths().with_prefix("train")
            shown = answers.with_columns(sample={"shaped_score": answers["score"].nan_to_num(0.0)})
            logged = self.recipe.run.num_logged_samples
            samples = sample_rows(rollouts, shown, self.source.collector, logged)
        batch = self.add_teacher_logprobs(batch)
        size = self.recipe.distill.global_batch_size
        for minibatch in split_minibatches(batch, size, self.recipe.seed, step):
            with self.phase("policy"):
                metrics += train(self.policy, minibatch, self.loss).with_prefix("policy")
        return StepResult(metrics, position + count, batch.tokens.numel(), samples)

    def add_teacher_logprobs(self, batch: Batch) -> Batch:
        """Adds the teacher's top tokens and their log-probabilities at each position, [N, K].

        With the full vocabulary, token ids are left out, and the student's distribution is full
        too. Sampling options such as temperature are not applied to either distribution.
        """
        k = self.recipe.distill.top_k or self.vocabulary
        with self.phase("teacher"):
            token_NK, logprob_NK = self.teacher.topk(batch, k)
        require_logprobs("the teacher", batch, logprob_NK)
        columns = {"mask": batch.mask, "teacher_logprob": logprob_NK}
        if k == self.vocabulary:
            return replace(batch, token=columns, sample={}, sampling=None, top_k=k)
        return replace(batch, token={**columns, "top_token": token_NK}, sample={}, sampling=None)


def open_distill(recipe: DistillRecipe, setup: Setup) -> Job:
    """Opens the student, the teacher and the source of sequences."""
    options = recipe.distill
    _require_vocabulary(recipe, setup)
    policy = setup.learner(recipe.policy_role)
    teacher = setup.learner(recipe.teacher_role)
    engine = None
    if recipe.sampling is not None or recipe.validation_sampling is not None:
        engine = build_engine(setup, policy, setup.sampler(policy))
    held_out = open_held_out(recipe, setup, recipe.validation_reward)
    data = recipe.data
    if options.max_tokens is None:
        rows = open_prompts(setup.files.train, data, setup.source.tokenizer, NO_ANSWERS)
    else:
        rows = open_demonstrations(
            setup.files.demonstrations,
            data,
            setup.source,
            options.max_tokens,
            "distill.max_tokens",
            NO_ANSWERS,
        )
    run_length = measure_run_length(
        recipe, len(rows), options.num_prompts_per_step, trains_rest=True
    )
    validate = None
    if engine is not None and held_out is not None:
        collector = RolloutCollector(engine, held_out, NoReward(), setup.source.decode, recipe.seed)
        reward = recipe.validation_reward
        section = recipe.validation_sampling
        validate = measure_answers(recipe, setup, held_out, collector, section, None, own=reward)
    agreement = None
    if isinstance(rows, DemonstrationRows):
        source = rows
    else:
        assert recipe.sampling is not None, "the recipe says how the student answers"
        assert engine is not None, "so there is a sampler"
        agreement = build_agreement(recipe, setup, policy, engine)
        collector = RolloutCollector(engine, rows, NoReward(), setup.source.decode, recipe.seed)
        sampling = setup.source.sampling(recipe.sampling)
        source = ComparedSampler(
            policy, collector, agreement, sampling, options.num_generations, setup.phase
        )
    loss = Distillation(options.kl_type, options.mixed_kl_weight, options.zero_outside_topk)
    return Job(
        step=DistillStep(
            policy, teacher, source, setup.phase, recipe, run_length, setup.source.vocabulary, loss
        ),
        run_length=run_length,
        state={"policy": policy},
        validate=validate,
        data=describe(rows, "rows" if isinstance(rows, DemonstrationRows) else "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        agreement=agreement,
    )


def _require_vocabulary(recipe: DistillRecipe, setup: Setup) -> None:
    """Raises InputError if the teacher's vocabulary is different or smaller than `top_k`."""
    vocabulary = setup.source.vocabulary
    count = recipe.distill.top_k or 0
    if count > vocabulary:
        raise InputError(
            f"distill.top_k={count}, but the student has {vocabulary} tokens; leave top_k out to "
            "compare all tokens"
        )
    folder = find_weights_folder(recipe.teacher.path)
    rows = int(read_config(folder).get_text_config().vocab_size)
    if rows != vocabulary:
        raise InputError(
            f"the teacher in {folder} has vocab_size {rows}, the student in {setup.source.folder} "
            f"{vocabulary}; use models with equal vocab_size"
        )
