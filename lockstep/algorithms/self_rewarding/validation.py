"""Validation of a self-rewarding run: held-out prompts, chosen as in training, and judges on known judgements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from lockstep.algorithms.opening import with_reference
from lockstep.algorithms.rows import DataFiles, files_of
from lockstep.algorithms.self_rewarding.meta import MetaJudging, Skill, judge_pair_row
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.self_rewarding.step import (
    AskedPrompts,
    SelfRewardingSettings,
    SelfRewardingWorkers,
    answer_and_judge,
)
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics, merge_metrics
from lockstep.core.types import Prompt, skip_timing
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.rows import Rows
from lockstep.judge.asking import SamplerAnswers
from lockstep.judge.judge import Judge
from lockstep.judge.known import (
    KnownScore,
    KnownWinner,
    measure_scores,
    measure_winners,
    read_scores,
    read_winners,
)
from lockstep.judge.verdicts import V
from lockstep.learners.base import compute_logprobs
from lockstep.losses.base import Outputs
from lockstep.losses.preference import interval_of_acc
from lockstep.rollouts.rollout import PromptStream
from lockstep.rollouts.sampler_session import SamplerSession


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts with the interface of training prompts: by position, here in the order of their file.

    Attributes:
        prompts: All held-out prompts.
        stream: Has their right answers, for verifiers.
    """

    prompts: Sequence[Prompt]
    stream: PromptStream

    def at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """The prompts `position` … `position + count − 1`, fewer at the end; in the same order for every seed."""
        return list(self.prompts[position : position + count])

    def answer(self, prompt: Prompt) -> str:
        """The right answer of a prompt; empty where the data has none."""
        return self.stream.answer(prompt)


@dataclass(frozen=True)
class _Pairs:
    """Held-out answers of one version of the weights, judged, and the pairs among them.

    Attributes:
        metrics: Metrics of answers, judges and pairs.
        batches: Pairs, with the reference policy's log-probabilities.
        table: Rows for the sample log.
    """

    iteration: int
    version: int
    metrics: Metrics
    batches: Sequence[Batch]
    table: list[dict[str, Any]]


class Twins:
    """Computes the metrics of a training step on held-out prompts, as `val/…`, and a table of the chosen pairs.

    Options, acting policy and reference policy are those of the newest step, whose iteration may have ended with it.
    Random numbers are the same each time, so answers of the same weights are too, and are cached: then only π's
    log-probabilities are new. An iteration of another algorithm has nothing to measure.

    Args:
        held_out: The prompts.
        workers: Those of training.
        settings: Those of training.
    """

    def __init__(self, held_out: HeldOut, workers: SelfRewardingWorkers, settings: SelfRewardingSettings) -> None:
        self._held_out, self._settings = held_out, settings
        self._workers = replace(
            workers, phase=skip_timing, collector=replace(workers.collector, prompts=held_out)
        )  # all of it is timed as validation
        self._pairs: _Pairs | None = None

    def __call__(self, step: int) -> tuple[Metrics, list[dict[str, Any]]]:
        """Computes metrics and table after a number of steps."""
        settings, newest = self._settings, max(step - 1, 0)
        iteration = newest // settings.steps_per_iteration
        if iteration == 0 and self._workers.first_iteration is not None:
            return Metrics(), []
        version = _acting_version(step, settings)
        pairs = self._pairs
        if pairs is None or (pairs.iteration, pairs.version) != (iteration, version):
            pairs = self._pairs = self._make_pairs(iteration, version)
        metrics, loss = pairs.metrics.with_prefix("val"), settings.loss(iteration)
        if pairs.batches:
            policy = self._workers.policy
            scored = ((batch, compute_logprobs(policy, batch, "the policy")) for batch in pairs.batches)
            learned = merge_metrics(loss(Outputs(logprob=logprob_N), batch)[1] for batch, logprob_N in scored)
            metrics += (learned + interval_of_acc(learned)).with_prefix("val")
        return metrics, pairs.table

    def _make_pairs(self, iteration: int, version: int) -> _Pairs:
        """Answers and judges all held-out prompts, in batches of a training step's size."""
        settings, size = self._settings, self._settings.options.global_batch_size
        workers = replace(self._workers, skill=Skill(_tell_no_one))  # as its comparisons of held-out answers show it
        metrics, batches = Metrics(), list[Batch]()
        answers, judgements = list[dict[str, Any]](), list[dict[str, Any]]()
        for position in range(0, len(self._held_out.prompts), size):
            count = min(size, len(self._held_out.prompts) - position)
            asked = AskedPrompts(position, count, iteration, version, key=0)
            found = answer_and_judge(asked, workers.collector, workers, settings)
            metrics += found.metrics
            batch = found.batch()
            batches += [with_reference(batch, workers.reference)] if len(batch) else []
            answers += found.answers.sample_rows(count)
            judgements += [judge_pair_row(pair, workers.collector.decode) for pair in found.judgements]
        shown = settings.num_logged_samples
        table = [{"held_out": True, **row} for row in (*answers[:shown], *judgements[:shown])]
        told = Metrics({name.removeprefix("train/"): metric for name, metric in metrics.items()})
        return _Pairs(iteration, version, told, batches, table)


def _tell_no_one(text: str) -> None:
    """Ignores a note that training has already shown."""


def _acting_version(step: int, settings: SelfRewardingSettings) -> int:
    """The version of the weights that act now; until the next iteration begins, the reference is the newest step's."""
    match settings.options.acting_policy:
        case "reference":
            return settings.acting_version(max(step - 1, 0))
        case "current":
            return step
        case _:
            assert_never(settings.options.acting_policy)


def rebind_judge(judge: Judge[V], actor: SamplerSession, policy: SamplerSession) -> Judge[V]:
    """The same judge; where the acting policy judges, asks the current policy instead."""
    answering = judge.answering
    if isinstance(answering, SamplerAnswers) and answering.generate == actor.generate:
        return replace(judge, answering=replace(answering, generate=policy.generate))
    return judge


def measure_judges(
    known: tuple[Sequence[KnownScore], Sequence[KnownWinner]],
    min_meta_accuracy: float,
    judge: Judge[float] | None,
    meta: MetaJudging | None,
    actor: SamplerSession,
    engine: SamplerSession,
    note: Callable[[str], None],
) -> Callable[[int], Metrics] | None:
    """Builds a validation of the judges' accuracy, by the weights of a version; None without known judgements.

    Args:
        known: Known scores, and known winners.
        min_meta_accuracy: Accuracy below which the user is warned.
        judge: The judge that scores; None: a reward model does.
        meta: The comparison of judgements; None: there is none.
        actor: Sampler session of the acting policy.
        engine: Sampler session of the current policy, which is asked in its place.
        note: Warns the user of a poor meta-judge.
    """
    scores, winners = known
    if judge is None or not (scores or winners):
        return None
    scoring = rebind_judge(judge, actor, engine)
    comparing = None if meta is None else rebind_judge(meta.judge, actor, engine)

    def measure(version: int) -> Metrics:
        with engine.at(version):
            found = measure_scores(scores, scoring) if scores else Metrics()
            if meta is not None and comparing is not None and winners:
                found += measure_winners(winners, comparing, meta.reasons)
        accuracy = found.floats().get("meta_judge_accuracy", 1.0)
        if accuracy < min_meta_accuracy:
            note(
                f"after step {version} the meta-judge names the better of two judgements in {accuracy:.0%} of the "
                f"known cases, and known.min_meta_accuracy is {min_meta_accuracy:.0%}; what a poor meta-judge "
                "prefers teaches the judge nothing: train it to compare judgements first, or turn use_meta_judge off"
            )
        return found.with_prefix("validation")

    return measure


def read_known(recipe: SelfRewardingRecipe, files: DataFiles) -> tuple[list[KnownScore], list[KnownWinner]]:
    """Reads known judgements from the recipe's files or from made data; winners only where judgements are compared.

    Raises:
        DataError: A row lacks what it needs, or has a score that the judge cannot give.
    """
    section = recipe.known
    if recipe.judge is None:
        return [], []
    scale = (recipe.judge.judge_score_low, recipe.judge.judge_score_high)
    judgements = files.judgements if section.judgements is None else files_of(section.judgements)
    comparisons = files.comparisons if section.comparisons is None else files_of(section.comparisons)
    scores = [] if judgements is None else read_scores(_open_rows(judgements), scale)
    if comparisons is None or recipe.meta_judge is None:
        return scores, []
    return scores, read_winners(_open_rows(comparisons))


def _open_rows(files: FileGroup) -> Rows:
    return open_rows(files, "error")
