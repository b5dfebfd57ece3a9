"""Validation of the judges of a self-rewarding run on judgements that are known to be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lockstep.algorithms.rows import DataFiles, files_of
from lockstep.algorithms.self_rewarding.meta import MetaJudging
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
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
from lockstep.metrics import Metrics
from lockstep.rollouts.sampler_session import SamplerSession


def rebind_judge(judge: Judge[V], actor: SamplerSession, policy: SamplerSession) -> Judge[V]:
    """The same judge; where the acting policy judges, asks the current policy instead."""
    answering = judge.answering
    if isinstance(answering, SamplerAnswers) and answering.generate == actor.generate:
        return replace(judge, answering=replace(answering, generate=policy.generate))
    return judge


def measure_judges(
    known: tuple[Sequence[KnownScore], Sequence[KnownWinner]],
    min_meta_accuracy: float,
    judge: Judge[float],
    meta: MetaJudging | None,
    engine: SamplerSession,
    note: Callable[[str], None],
) -> Callable[[int], Metrics] | None:
    """Builds a validation of the judges' accuracy, by the weights of a version; None without known judgements.

    Args:
        known: Known scores, and known winners.
        min_meta_accuracy: Accuracy below which the user is warned.
        judge: The judge that scores.
        meta: The comparison of judgements; None: there is none.
        engine: Sampler session of the policy.
        note: Warns the user of a poor meta-judge.
    """
    scores, winners = known
    if not scores and not winners:
        return None

    def measure(version: int) -> Metrics:
        with engine.at(version):
            found = measure_scores(scores, judge) if scores else Metrics()
            if meta is not None and winners:
                found += measure_winners(winners, meta.judge, meta.reasons)
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
