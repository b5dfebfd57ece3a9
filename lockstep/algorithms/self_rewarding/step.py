"""Self-rewarding training: Yuan et al. 2024, with the length control of Wu et al. 2024.

The model answers, judges its own answers, and learns from the best and the worst by DPO; with a meta-judge it learns to
judge, too. An iteration goes through the prompts; the policy at its beginning is the reference, which also acts and
judges. It is replaced when the next iteration begins, not when this one ends, so that figures at the end of an
iteration are measured against the policy that wrote its answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import torch

from lockstep.algorithms.job import Step, StepResult
from lockstep.algorithms.learn_pairs import build_preference_loss
from lockstep.algorithms.opening import with_reference
from lockstep.algorithms.self_rewarding.answers import (
    RankedAnswers,
    Scoring,
    answer_metrics,
    choose_pairs,
    pair_metrics,
)
from lockstep.algorithms.self_rewarding.meta import (
    JudgePair,
    MetaJudging,
    Skill,
    judge_batch,
    judge_pair_row,
    judge_pairs,
)
from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.core.batch import Batch, concat
from lockstep.core.metrics import Last, Mean, Metrics, Sum
from lockstep.core.types import Phase, SamplingParams
from lockstep.data.prompts import Prompts
from lockstep.learners.base import Learner, hand_over, train
from lockstep.losses.preference import Preference
from lockstep.monitor.agreement import Agreement
from lockstep.rollouts.rollout import RolloutCollector


@dataclass(frozen=True)
class SelfRewardingWorkers:
    """Models and data of a step: π, the frozen π_ref, the rollout collector, and the judges, which may be π itself.

    Attributes:
        shared_folder: A folder inside the run's, which all machines share; it exists while weights are handed over.
        new_prompts: Prompts of an iteration, by its number and the version of its first weights, with metrics
            of their generation; None: the prompts are those of the data.
        first_iteration: A step of the first iteration, if that is another algorithm's; takes step and position.
        skill: What the meta-judge's comparisons have shown.
    """

    policy: Learner
    reference: Learner
    collector: RolloutCollector
    score: Scoring
    meta: MetaJudging | None
    phase: Phase
    skill: Skill
    shared_folder: Path
    new_prompts: Callable[[int, int], tuple[Prompts, Metrics]] | None = None
    first_iteration: Step | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True)
class SelfRewardingSettings:
    """The options of the recipe, ready for use in the step.

    Attributes:
        rows: Prompts of one pass of an iteration.
        epochs: Passes of an iteration.
        num_logged_samples: Prompts of a step that the sample log shows.
        leaks: True for an answer that reads like a judgement.
    """

    options: SelfRewardingSection
    sampling: SamplingParams
    rows: int
    epochs: int
    num_logged_samples: int
    leaks: Callable[[str], bool]

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps of an iteration; prompts that do not fill one are left over."""
        return self.rows * self.epochs // self.options.global_batch_size

    def position(self, step: int) -> int:
        """Row of the run at which a step begins; each iteration has rows of its own."""
        iteration, within = divmod(step, self.steps_per_iteration)
        return iteration * self.rows * self.epochs + within * self.options.global_batch_size

    def epoch(self, step: int) -> int:
        """Passes that an iteration has made over its prompts before a step."""
        return step % self.steps_per_iteration * self.options.global_batch_size // self.rows

    def beginning(self, step: int) -> int:
        """The first step of a step's iteration."""
        return step - step % self.steps_per_iteration

    def loss(self, iteration: int) -> Preference:
        """The loss on pairs of an iteration."""
        return build_preference_loss(self.options, self.options.beta_of(iteration))

    def acting_version(self, step: int) -> int:
        """The version of the weights that act in a step: the number of steps that the policy had done."""
        match self.options.acting_policy:
            case "reference":
                return self.beginning(step)
            case "current":
                return step
            case _:
                assert_never(self.options.acting_policy)


def self_rewarding_step(
    step: int, position: int, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> StepResult:
    """Runs one optimizer step; when an iteration after the first begins, the policy becomes the reference."""
    iteration = step // settings.steps_per_iteration
    if iteration and step == settings.beginning(step):
        with workers.phase("reference"):
            hand_over(workers.policy, workers.reference, workers.shared_folder)  # π_ref ← π
            workers.policy.reset_optimizer()
    if iteration == 0 and workers.first_iteration is not None:
        result = workers.first_iteration(step, position)
    else:
        result = _learn_from_own_judgement(step, position, workers, settings)
    done = Metrics({"train/iteration": Last(float(iteration)), "train/epoch": Last(float(settings.epoch(step)))})
    return replace(result, metrics=result.metrics + done, position=settings.position(step + 1))


@dataclass(frozen=True)
class AskedPrompts:
    """Prompts to answer, and the version of the weights that answers.

    Attributes:
        position: Row of the first prompt.
        count: Number of prompts.
        iteration: The iteration whose options apply.
        version: Version of the acting weights.
        key: Key of the judge's random numbers.
    """

    position: int
    count: int
    iteration: int
    version: int
    key: int


@dataclass(frozen=True)
class JudgedAnswers:
    """Answers, their scores, and the pairs among them.

    Attributes:
        refitted: Metrics of the weight sync before.
        metrics: Metrics of answers, judges and pairs.
    """

    answers: RankedAnswers
    judgements: list[JudgePair]
    refitted: Metrics
    metrics: Metrics

    def batch(self) -> Batch:
        """All pairs to learn from; the column `judge_pair` tells them apart, where there are both."""
        batch = self.answers.batch()
        if not self.judgements:
            return batch
        told_apart = batch.with_columns(sample={"judge_pair": torch.zeros(len(batch)).bool()})
        return concat([told_apart, judge_batch(self.judgements)])


def answer_and_judge(
    asked: AskedPrompts, collector: RolloutCollector, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> JudgedAnswers:
    """Runs all of a step that comes before the update: answer, judge, choose."""
    options = settings.options
    with collector.engine.at(asked.version) as refitted:
        with workers.phase("generate"):  # y₁ … y_N ~ π_ref(· | x)
            rollouts = collector.collect(asked.position, asked.count, settings.sampling, options.num_responses_to_gen)
        with workers.phase("judge"):  # s_n = mean of k verdicts of π_ref on (x, y_n)
            found = workers.score(rollouts, asked.key)
        answers = choose_pairs(
            rollouts, found, options.length_control_of(asked.iteration), options.num_responses_to_gen
        )
        judgements, metrics = _judge_judgements(asked, answers, workers, options)
    metrics += found.metrics() + rollouts.rewards()
    metrics += answer_metrics(answers.rollouts, found, settings.leaks).with_prefix("train")
    metrics += pair_metrics(answers.pairs).with_prefix("train")
    return JudgedAnswers(answers, judgements, refitted, metrics)


def _learn_from_own_judgement(
    step: int, position: int, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> StepResult:
    """Runs one step: answer, judge, choose, learn."""
    size, iteration = settings.options.global_batch_size, step // settings.steps_per_iteration
    collector, told = _asking(step, workers, settings)
    asked = AskedPrompts(position, size, iteration, settings.acting_version(step), step)
    found = answer_and_judge(asked, collector, workers, settings)
    batch = found.answers.rollouts.batch
    metrics = found.metrics + told + found.refitted + _compare_sampler(step, batch, workers, settings)
    metrics += _train_on_pairs(found.batch(), workers, settings, iteration)
    samples = found.answers.sample_rows(settings.num_logged_samples)
    samples += [judge_pair_row(pair, collector.decode) for pair in found.judgements[: settings.num_logged_samples]]
    return StepResult(metrics, position + size, batch.tokens.numel(), samples)


def _compare_sampler(
    step: int, batch: Batch, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> Metrics:
    """Compares learner and sampler of the acting policy on some of its answers."""
    if workers.agreement is None:
        return Metrics()
    with workers.phase("watch"):
        return workers.agreement.compare(step + 1, settings.acting_version(step), batch)


def _asking(
    step: int, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> tuple[RolloutCollector, Metrics]:
    """The collector for the prompts of a step's iteration; at its beginning, with metrics of new prompts."""
    if workers.new_prompts is None:
        return workers.collector, Metrics()
    began = settings.beginning(step)
    with workers.phase("prompts"):
        prompts, metrics = workers.new_prompts(step // settings.steps_per_iteration, began)
    return replace(workers.collector, prompts=prompts), metrics if step == began else Metrics()


def _judge_judgements(
    asked: AskedPrompts, answers: RankedAnswers, workers: SelfRewardingWorkers, options: SelfRewardingSection
) -> tuple[list[JudgePair], Metrics]:
    """Makes pairs of judgements, at most as many as there is room for; none while the meta-judge shows no skill."""
    room = options.room_for_judge_pairs(asked.iteration, answers.usable)
    if workers.meta is None or not room:
        return [], Metrics()
    with workers.phase("meta_judge"):  # which of two judgements of y_n is better, says π_ref
        found, metrics, compared = judge_pairs(answers, room, workers.meta, asked.key)
    kept = found if workers.skill.show(asked.iteration, asked.key, compared) else []
    metrics += workers.skill.metrics() + Metrics(left_out=Sum(len(found) - len(kept)))
    total = answers.usable + len(kept)
    return kept, metrics.with_prefix("meta_judge") + Metrics({"train/judge_pair_share": Mean(len(kept), total)})


def _train_on_pairs(
    batch: Batch, workers: SelfRewardingWorkers, settings: SelfRewardingSettings, iteration: int
) -> Metrics:
    """Runs one optimizer step on the pairs; none if there are no pairs."""
    if not len(batch):
        return Metrics({"train/updates_skipped": Sum(1.0)})
    with workers.phase("logprobs"):
        batch = with_reference(batch, workers.reference)  # log π_ref(y | x)
    with workers.phase("policy"):
        return train(workers.policy, batch, settings.loss(iteration)).with_prefix("train")
