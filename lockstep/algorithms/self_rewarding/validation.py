"""Validates a self-rewarding run on held-out prompts, and its judges on known judgments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lockstep.algorithms.job import Validation, ValidationFunction
from lockstep.algorithms.opening import with_reference
from lockstep.algorithms.rows import DataFiles, group_files
from lockstep.algorithms.self_rewarding.meta import MetaJudgeSkill, MetaJudging, judge_pair_row
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.self_rewarding.step import (
    JudgedAnswers,
    SelfRewardingSettings,
    SelfRewardingWorkers,
    answer_and_judge,
)
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics, merge_metrics
from lockstep.core.types import Prompt, skip_timing
from lockstep.data.files import open_rows
from lockstep.data.prompts import PromptRows
from lockstep.judge.asking import SamplerAnswers
from lockstep.judge.build import score_parser
from lockstep.judge.judge import LLMJudge
from lockstep.judge.known import (
    LabeledCase,
    measure_scores,
    measure_winners,
    read_scores,
    read_winners,
)
from lockstep.judge.verdicts import PairWinner, V
from lockstep.learners.base import compute_logprobs
from lockstep.losses.base import Outputs
from lockstep.losses.preference import measure_acc_interval
from lockstep.rollouts.sampler_session import SamplerSession


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts with the interface of training prompts, in file order."""

    prompts: Sequence[Prompt]
    answer: Callable[[Prompt], str]

    def read_at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """Prompts `position` … `position + count − 1`; fewer at the end. The seed has no effect."""
        return list(self.prompts[position : position + count])


def build_pair_validation(
    recipe: SelfRewardingRecipe,
    prompts: PromptRows | None,
    workers: SelfRewardingWorkers,
    settings: SelfRewardingSettings,
) -> ValidationFunction | None:
    """Builds the validation by training-step metrics (`val/…`) and a table of pairs.

    It uses the options and the reference policy of the latest step, which may be the last step of
    its iteration. Random numbers are the same each time, so the reference's answers are sampled
    once per iteration; after that only π's log-probabilities are new. An SFT iteration has no
    metrics.
    """
    if prompts is None:
        return None
    held_out = HeldOut(prompts.read_first(recipe.data.max_validation_samples), prompts.answer)
    collector = replace(workers.collector, prompts=held_out)
    count = len(held_out.prompts)
    size = settings.options.global_batch_size
    shown = settings.run.num_logged_samples

    @lru_cache(maxsize=1)
    def make_pairs(iteration: int) -> tuple[list[JudgedAnswers], list[Batch]]:
        # all time counts as validation
        untimed = replace(workers, phase=skip_timing, skill=MetaJudgeSkill(lambda text: None))
        judged: list[JudgedAnswers] = []
        batches: list[Batch] = []
        for start in range(0, count, size):
            rows = range(start, min(start + size, count))
            with collector.engine.at(iteration * settings.steps_per_iteration):
                judged.append(answer_and_judge(rows, iteration, 0, collector, untimed, settings))
            batch = judged[-1].build_pair_batch()
            if len(batch):
                batches.append(with_reference(batch, workers.reference))
        return judged, batches

    def measure_pairs(step: int) -> Validation:
        iteration = max(step - 1, 0) // settings.steps_per_iteration
        if iteration == 0 and workers.first_iteration is not None:
            return Validation(Metrics())
        judged, batches = make_pairs(iteration)
        loss = settings.build_loss(iteration)
        metrics = merge_metrics(one.metrics for one in judged)
        metrics = Metrics({name.removeprefix("train/"): metric for name, metric in metrics.items()})
        if batches:
            learned = Metrics()
            for batch in batches:
                outputs = Outputs(compute_logprobs(workers.policy, batch, "the policy"))
                learned += loss(outputs, batch)[1]
            metrics += learned + measure_acc_interval(learned)
        answers: list[dict[str, Any]] = []
        judgments: list[dict[str, Any]] = []
        for one in judged:
            answers += one.answers.sample_rows(size)
            judgments += [judge_pair_row(pair, collector.decode) for pair in one.judgments]
        rows = [{"held_out": True, **row} for row in answers[:shown] + judgments[:shown]]
        return Validation(metrics.with_prefix("val"), rows)

    return measure_pairs


def _rebind_judge(judge: LLMJudge[V], actor: SamplerSession, policy: SamplerSession) -> LLMJudge[V]:
    """The same judge, with the current policy in place of the acting policy."""
    answering = judge.answering
    if isinstance(answering, SamplerAnswers) and answering.generate == actor.generate:
        return replace(judge, answering=replace(answering, generate=policy.generate))
    return judge


def measure_judges(
    known: tuple[Sequence[LabeledCase[float]], Sequence[LabeledCase[PairWinner]]],
    judge: LLMJudge[float],
    meta: MetaJudging | None,
    actor: SamplerSession,
    engine: SamplerSession,
) -> Callable[[int], Metrics] | None:
    """Builds the validation of the judges' accuracy; None without known judgments.

    Args:
        known: Known scores and known winners.
        judge: The judge that scores.
        meta: The comparison of judgments; None: not used.
        actor: Sampler session of the acting policy.
        engine: Sampler session of the current policy, which replaces the acting policy.
    """
    scores, winners = known
    if not (scores or winners):
        return None

    def measure_accuracy(version: int) -> Metrics:
        metrics = Metrics()
        with engine.at(version):
            if scores:
                metrics += measure_scores(scores, _rebind_judge(judge, actor, engine))
            if meta is not None and winners:
                metrics += measure_winners(winners, _rebind_judge(meta.judge, actor, engine))
        return metrics.with_prefix("validation")

    return measure_accuracy


def read_known(
    recipe: SelfRewardingRecipe, files: DataFiles
) -> tuple[list[LabeledCase[float]], list[LabeledCase[PairWinner]]]:
    """Reads known judgments from the recipe's files or the task; winners only for meta-judges.

    Raises:
        DataError: A row lacks a field, or has a score that the judge cannot give.
    """
    section = recipe.known
    judge = recipe.judge
    if section.judgments is None:
        judgments = files.judgments
    else:
        judgments = group_files(section.judgments)
    if section.comparisons is None:
        comparisons = files.comparisons
    else:
        comparisons = group_files(section.comparisons)
    scores: list[LabeledCase[float]] = []
    if judgments is not None:
        scores = read_scores(
            open_rows(judgments, "error"), judge.judge_score_low, judge.judge_score_high
        )
    if comparisons is None or recipe.meta_judge is None:
        return scores, []
    return scores, read_winners(open_rows(comparisons, "error"), score_parser(judge).without_score)
