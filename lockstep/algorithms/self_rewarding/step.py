"""Self-rewarding training (Yuan et al. 2024) with length control (Wu et al. 2024).

The model answers, judges its own answers, and learns from the best and the worst by DPO; with a
meta-judge it also learns to judge. An iteration goes through the prompts; the policy at its start
is the reference, which also acts and judges. It is replaced when the next iteration begins, not
when this one ends, so that metrics at the end of an iteration are measured against the policy that
wrote its answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lockstep.algorithms.job import StepFunction, StepResult
from lockstep.algorithms.learn_pairs import build_preference_loss
from lockstep.algorithms.opening import with_reference
from lockstep.algorithms.self_rewarding.answers import (
    RankedAnswers,
    answer_metrics,
    choose_pairs,
    judge_answers,
    pair_metrics,
)
from lockstep.algorithms.self_rewarding.meta import (
    JudgePair,
    MetaJudgeSkill,
    MetaJudging,
    judge_batch,
    judge_pair_row,
    judge_pairs,
)
from lockstep.algorithms.self_rewarding.new_prompts import NewPrompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.config import RunSection
from lockstep.core.batch import Batch, concat_batches
from lockstep.core.metrics import LastValue, Mean, Metrics, Sum
from lockstep.core.types import PhaseTimer, SamplingParams
from lockstep.judge.judge import LLMJudge, judge_metrics
from lockstep.learners.base import Learner, copy_weights, train
from lockstep.losses.preference import Preference
from lockstep.monitor.agreement import Agreement
from lockstep.rollouts.rollout import RolloutCollector


@dataclass(frozen=True)
class SelfRewardingWorkers:
    """Models and data of a step: π, the frozen π_ref, rollout collector and judges.

    Attributes:
        shared_folder: A folder inside the run's folder, shared by all machines; it exists only
            during weight transfers.
        new_prompts: Writes the prompts of an iteration; None: use the data's prompts.
        first_iteration: Step of the first iteration if it is SFT.
        skill: Skill of the meta-judge.
    """

    policy: Learner
    reference: Learner
    collector: RolloutCollector
    judge: LLMJudge[float]
    meta: MetaJudging | None
    phase: PhaseTimer
    skill: MetaJudgeSkill
    shared_folder: Path
    new_prompts: NewPrompts | None
    first_iteration: StepFunction | None
    agreement: Agreement


@dataclass(frozen=True)
class SelfRewardingSettings:
    """The options of a step.

    Attributes:
        options: The algorithm's own section.
        run: The section of the run, with the number of passes per iteration.
        sampling: The sampling distribution of answers.
        rows: Number of prompts in one pass of an iteration.
    """

    options: SelfRewardingSection
    run: RunSection
    sampling: SamplingParams
    rows: int

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps per iteration; prompts that do not fill a step are skipped."""
        return self.rows * self.run.max_epochs // self.options.global_batch_size

    def find_first_row(self, step: int) -> int:
        """Row of the run at which a step begins; iterations do not share rows."""
        iteration, within = divmod(step, self.steps_per_iteration)
        first = iteration * self.rows * self.run.max_epochs
        return first + within * self.options.global_batch_size

    def count_passes(self, step: int) -> int:
        """Number of passes that an iteration has made over its prompts before a step."""
        return step % self.steps_per_iteration * self.options.global_batch_size // self.rows

    def find_first_step(self, step: int) -> int:
        """The first step of the iteration that contains a step."""
        return step - step % self.steps_per_iteration

    def build_loss(self, iteration: int) -> Preference:
        """The pair loss of an iteration."""
        return build_preference_loss(self.options, self.options.beta_of(iteration))


def self_rewarding_step(
    step: int, position: int, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> StepResult:
    """Runs one optimizer step; a new iteration first copies the policy to the reference."""
    iteration = step // settings.steps_per_iteration
    if iteration and step == settings.find_first_step(step):
        with workers.phase("reference"):
            copy_weights(workers.policy, workers.reference, workers.shared_folder)  # π_ref ← π
            workers.policy.reset_optimizer()
    if iteration == 0 and workers.first_iteration is not None:
        result = workers.first_iteration(step, position)
    else:
        result = _learn_from_own_judgment(step, position, workers, settings)
    done = Metrics(
        {
            "train/iteration": LastValue(float(iteration)),
            "train/epoch": LastValue(float(settings.count_passes(step))),
        }
    )
    return replace(
        result, metrics=result.metrics + done, position=settings.find_first_row(step + 1)
    )


@dataclass(frozen=True)
class JudgedAnswers:
    """Answers, their scores, and their pairs.

    Attributes:
        metrics: Metrics of answers, judges and pairs.
    """

    answers: RankedAnswers
    judgments: list[JudgePair]
    metrics: Metrics

    def build_pair_batch(self) -> Batch:
        """All training pairs; `judge_pair` marks judgment pairs if there are both kinds."""
        batch = self.answers.build_pair_batch()
        if not self.judgments:
            return batch
        marked = batch.with_columns(sample={"judge_pair": torch.zeros(len(batch)).bool()})
        return concat_batches([marked, judge_batch(self.judgments)])


def answer_and_judge(
    rows: range,
    iteration: int,
    key: int,
    collector: RolloutCollector,
    workers: SelfRewardingWorkers,
    settings: SelfRewardingSettings,
) -> JudgedAnswers:
    """Answers, judges and chooses pairs, with the sampler's session open.

    Pairs of judgments are left out until the meta-judge shows skill.

    Args:
        rows: Rows of the prompts.
        iteration: The iteration whose options apply.
        key: Key of the judge's random numbers.
        collector: The collector with the prompts.
        workers: Models.
        settings: Options.
    """
    options = settings.options
    with workers.phase("generate"):  # y₁ … y_N ~ π_ref(· | x)
        rollouts = collector.collect(
            rows.start, len(rows), settings.sampling, options.num_responses_to_gen
        )
    with workers.phase("judge"):  # s_n = mean of k verdicts of π_ref on (x, y_n)
        judged = judge_answers(rollouts, workers.judge, key)
    answers = choose_pairs(
        rollouts, judged, options.length_control_of(iteration), options.num_responses_to_gen
    )
    room = options.room_for_judge_pairs(iteration, answers.usable_pair_count)
    judgments: list[JudgePair] = []
    metrics = Metrics()
    if workers.meta is not None and room:
        with workers.phase("meta_judge"):  # π_ref decides which of two judgments of y_n is better
            found, metrics, compared = judge_pairs(answers, room, workers.meta, key)
        if workers.skill.add_comparisons(iteration, compared):
            judgments = found
        metrics += workers.skill.compute_metrics()
        metrics += Metrics(left_out=Sum(len(found) - len(judgments)))
        total = answers.usable_pair_count + len(judgments)
        metrics = metrics.with_prefix("meta_judge")
        metrics += Metrics({"train/judge_pair_share": Mean(len(judgments), total)})
    metrics += judge_metrics(judged).with_prefix("judge")
    metrics += (answer_metrics(rollouts, judged) + pair_metrics(answers.pairs)).with_prefix("train")
    return JudgedAnswers(answers, judgments, metrics)


def _learn_from_own_judgment(
    step: int, position: int, workers: SelfRewardingWorkers, settings: SelfRewardingSettings
) -> StepResult:
    """Runs one step: answer, judge, choose, learn."""
    rows = range(position, position + settings.options.global_batch_size)
    iteration = step // settings.steps_per_iteration
    version = settings.find_first_step(step)
    collector = workers.collector
    writing = Metrics()
    if workers.new_prompts is not None:
        with workers.phase("prompts"):
            prompts, writing = workers.new_prompts(iteration, version)
        collector = replace(collector, prompts=prompts)
    with collector.engine.at(version) as sync_metrics:
        judged = answer_and_judge(rows, iteration, step, collector, workers, settings)
    batch = judged.answers.rollouts.batch
    metrics = judged.metrics
    if step == version:
        metrics += writing
    metrics += sync_metrics
    with workers.phase("watch"):
        metrics += workers.agreement.compare(step + 1, version, batch)
    pairs = judged.build_pair_batch()
    if len(pairs):
        with workers.phase("logprobs"):
            pairs = with_reference(pairs, workers.reference)  # log π_ref(y | x)
        with workers.phase("policy"):
            learned = train(workers.policy, pairs, settings.build_loss(iteration))
        metrics += learned.with_prefix("train")
    else:
        metrics += Metrics({"train/updates_skipped": Sum(1.0)})
    samples = judged.answers.sample_rows(settings.run.num_logged_samples)
    for pair in judged.judgments[: settings.run.num_logged_samples]:
        samples.append(judge_pair_row(pair, collector.decode))
    return StepResult(metrics, rows.stop, batch.tokens.numel(), samples)
