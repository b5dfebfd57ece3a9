"""Measures the judges of a self-rewarding run by judgements that are known to be right, when it is validated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lockstep.data.files import Files, open_rows
from lockstep.data.rows import Rows
from lockstep.experience.engine import Engine
from lockstep.experience.judge.asking import Generates, SamplerAnswers
from lockstep.experience.judge.judge import Judge
from lockstep.experience.judge.known import judged_scores, judged_winners, read_scores, read_winners
from lockstep.experience.judge.verdicts import V, Winner
from lockstep.metrics import Metrics
from lockstep.recipe import KnownSection
from lockstep.runtime.rows import DataFiles, files_of


def asked_of(judge: Judge[V], actor: Generates, policy: Generates) -> Judge[V]:
    """The same judge; where the one who acts judges, the policy as it is now does."""
    answering = judge.answering
    if isinstance(answering, SamplerAnswers) and answering.sampler is actor:
        return replace(judge, answering=replace(answering, sampler=policy))
    return judge


def known_judgements(
    section: KnownSection,
    files: DataFiles,
    judge: Judge[float],
    meta: Judge[Winner] | None,
    engine: Engine,
    note: Callable[[str], None],
) -> Callable[[int], Metrics] | None:
    """How often the judges are right, by the weights of a version; None where nothing is known.

    Args:
        section: Of the recipe.
        files: What made data brings.
        judge: Scores.
        meta: Compares judgements, if anybody does.
        engine: Of the policy.
        note: Tells the user about a poor meta-judge.

    Raises:
        DataError: A row lacks what it needs.
    """
    judgements = files.judgements if section.judgements is None else files_of(section.judgements)
    comparisons = files.comparisons if section.comparisons is None else files_of(section.comparisons)
    scores = [] if judgements is None else read_scores(_opened(judgements))
    winners = [] if comparisons is None or meta is None else read_winners(_opened(comparisons))
    if not scores and not winners:
        return None

    def measure(version: int) -> Metrics:
        with engine.at(version):
            found = judged_scores(scores, judge) if scores else Metrics()
            if meta is not None and winners:
                found += judged_winners(winners, meta)
        accuracy = found.floats().get("meta_judge_accuracy", 1.0)
        if accuracy < section.min_meta_accuracy:
            note(
                f"after step {version} the meta-judge names the better of two judgements in {accuracy:.0%} of the "
                f"known cases, and known.min_meta_accuracy is {section.min_meta_accuracy:.0%}; what a poor meta-judge "
                "prefers teaches the judge nothing: train it to compare judgements first, or turn use_meta_judge off"
            )
        return found.prefixed("validation")

    return measure


def _opened(files: Files) -> Rows:
    return open_rows(files, "error")
