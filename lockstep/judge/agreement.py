"""Measures how well a judge agrees with people on ranked responses, by scores or by pairs.

The result of a prompt is a `PromptAssessment`, plain data that can be stored in a file; metrics
are computed only from assessments, so also from the file. Judgments without a verdict are counted
and left out of other metrics.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from operator import sub
from typing import Any

from lockstep.data.ranked import RankedResponses
from lockstep.judge.build import pair_case, response_case
from lockstep.judge.judge import CaseJudgments, JudgeCase, JudgeReply, LLMJudge, mean_score
from lockstep.judge.verdicts import CAUSES, PairWinner
from lockstep.objectives.estimates import MeanEstimate, mean, share
from lockstep.objectives.ranking import (
    decide_pairs,
    exact_match,
    kendall_tau,
    longer_preferred,
    spearman,
    tie_share,
    top_is_best,
)

AgreementFigures = dict[str, MeanEstimate]
PairDecision = tuple[float, int]
"""The judge's decision on two responses that people rank differently.

1 if it agrees with people, 0 if not, ½ for a tie; and the length of the response that people prefer
minus the length of the other, in characters.
"""


@dataclass(frozen=True)
class StoredJudgment:
    """One judgment in stored form.

    Attributes:
        verdict: A score, or the number of the preferred response; None: no verdict.
        cause: The cause of a missing verdict.
        reply: Text of the judge's reply; None: not asked or not answered.
        shortened: True if the judge saw only the beginning of a response.
    """

    verdict: float | None
    cause: str | None
    reply: str | None
    shortened: bool


@dataclass(frozen=True)
class PairComparison:
    """Two responses, by number from 0, in the order shown to the judge."""

    first: int
    second: int
    said: StoredJudgment


@dataclass(frozen=True)
class PromptAssessment:
    """A judge's judgments of the responses to one prompt.

    Attributes:
        id: Id of the prompt, stable across runs.
        conversation: The prompt.
        responses: The responses.
        ranks: Ranks by people, the best lowest.
        scores: The mean of each response's verdicts; None: no verdict.
        judgments: Judgments of each response.
        pairs: Comparisons of responses that people rank differently, in both orders; can be empty.
    """

    id: str
    conversation: tuple[dict[str, Any], ...]
    responses: tuple[str, ...]
    ranks: tuple[float, ...]
    scores: tuple[float | None, ...]
    judgments: tuple[tuple[StoredJudgment, ...], ...]
    pairs: tuple[PairComparison, ...]

    def decide_pair(self, pair: PairComparison) -> PairDecision:
        """The decision of a comparison with a verdict."""
        better, worse = sorted((pair.first, pair.second), key=self.ranks.__getitem__)
        return float(pair.said.verdict == better), len(self.responses[better]) - len(
            self.responses[worse]
        )


def assess_prompts(
    ranked: Sequence[RankedResponses],
    scorer: LLMJudge[float],
    comparer: LLMJudge[PairWinner] | None,
) -> list[PromptAssessment]:
    """Scores all responses with a judge and, with a comparer, compares them."""
    cases: list[JudgeCase] = []
    for one in ranked:
        for number, response in enumerate(one.responses):
            cases.append(response_case(one.conversation, response, (one.id, number)))
    scored = iter(scorer(cases))
    orders = [[] if comparer is None else _order_pairs(one.ranks) for one in ranked]
    cases = []
    for one, own in zip(ranked, orders, strict=True):
        for first, second in own:
            texts = one.responses[first], one.responses[second]
            cases.append(pair_case(one.conversation, *texts, (one.id, first, second)))
    compared = iter([] if comparer is None else comparer(cases))
    found: list[PromptAssessment] = []
    for one, own in zip(ranked, orders, strict=True):
        judged = [next(scored) for _ in one.responses]
        judgments: list[tuple[StoredJudgment, ...]] = []
        for case in judged:
            judgments.append(
                tuple(_store_reply(case, reply, reply.verdict.value) for reply in case.judgments)
            )
        pairs: list[PairComparison] = []
        for first, second in own:
            case = next(compared)
            [reply] = case.judgments
            numbers = {"A": float(first), "B": float(second), None: None}
            stored = _store_reply(case, reply, numbers[reply.verdict.value])
            pairs.append(PairComparison(first, second, stored))
        assessment = PromptAssessment(
            id=one.id,
            conversation=tuple(dict(message) for message in one.conversation),
            responses=one.responses,
            ranks=one.ranks,
            scores=tuple(map(mean_score, judged)),
            judgments=tuple(judgments),
            pairs=tuple(pairs),
        )
        found.append(assessment)
    return found


def _order_pairs(ranks: Sequence[float]) -> list[tuple[int, int]]:
    """Both orders of every two responses that people rank differently."""
    orders: list[tuple[int, int]] = []
    for a, b in combinations(range(len(ranks)), 2):
        if ranks[a] != ranks[b]:
            orders += [(a, b), (b, a)]
    return orders


def _store_reply(
    judged: CaseJudgments[Any], reply: JudgeReply[Any], verdict: float | None
) -> StoredJudgment:
    text = None if reply.answer is None else reply.answer.text
    return StoredJudgment(verdict, reply.verdict.cause, text, judged.shortened)


def score_figures(assessments: Sequence[PromptAssessment], top: float) -> AgreementFigures:
    """Agreement of scores, averaged over prompts, with 95 % intervals.

    Args:
        assessments: Assessments of all prompts.
        top: The highest score of the scale.
    """
    ranked: list[tuple[list[float], list[float]]] = []
    decisions: list[list[PairDecision]] = []
    for one in assessments:
        ranks: list[float] = []
        scores: list[float] = []
        lengths: list[int] = []
        for rank, score, response in zip(one.ranks, one.scores, one.responses, strict=True):
            if score is not None:
                ranks.append(rank)
                scores.append(score)
                lengths.append(len(response))
        ranked.append((ranks, scores))
        decided = decide_pairs(ranks, scores)
        decisions.append(
            [(right, lengths[better] - lengths[worse]) for better, worse, right in decided]
        )

    def measure_each(
        measure: Callable[[Sequence[float], Sequence[float]], float | None],
    ) -> list[float]:
        values = (measure(ranks, scores) for ranks, scores in ranked)
        return [value for value in values if value is not None]

    return {
        **_pairwise_figures(decisions),
        "ties": share(measure_each(tie_share)),
        "exact_match": share(measure_each(exact_match)),
        "top_is_best": share(measure_each(lambda ranks, scores: top_is_best(ranks, scores, top))),
        "spearman": mean(measure_each(spearman)),
        "kendall_tau": mean(measure_each(kendall_tau)),
    }


def pair_figures(assessments: Sequence[PromptAssessment]) -> AgreementFigures:
    """Agreement of pairwise comparisons with 95 % intervals, and the influence of order.

    `first_preferred` is the share of verdicts for the response shown first; `consistent` is the
    share of pairs with two verdicts for the same response, and `consistent_accuracy` is the
    accuracy on those pairs.
    """
    decisions: list[list[PairDecision]] = []
    firsts: list[list[bool]] = []
    consistent: list[list[bool]] = []
    rights_if_consistent: list[list[float]] = []
    for one in assessments:
        decided: dict[tuple[int, int], PairDecision] = {}
        is_first: list[bool] = []
        for pair in one.pairs:
            if pair.said.verdict is not None:
                decided[pair.first, pair.second] = one.decide_pair(pair)
                is_first.append(pair.said.verdict == pair.first)
        decisions.append(list(decided.values()))
        firsts.append(is_first)
        rights = {order: right for order, (right, _) in decided.items()}
        twice = [(rights[a, b], rights[b, a]) for a, b in rights if a < b and (b, a) in rights]
        consistent.append([right == back for right, back in twice])
        rights_if_consistent.append([right for right, back in twice if right == back])
    return {
        **_pairwise_figures(decisions),
        "first_preferred": share(_average_each(firsts)),
        "consistent": share(_average_each(consistent)),
        "consistent_accuracy": share(_average_each(rights_if_consistent)),
    }


def _pairwise_figures(decisions: Sequence[Sequence[PairDecision]]) -> AgreementFigures:
    """Accuracy and its dependence on length."""
    rights: list[list[float]] = []
    by_judge: list[float] = []
    by_people: list[float] = []
    for own in decisions:
        rights.append([right for right, _ in own])
        judge = longer_preferred(own)
        people = longer_preferred([(1.0, excess) for _, excess in own])
        if judge is not None and people is not None:
            by_judge.append(judge)
            by_people.append(people)
    return {
        "pairwise_accuracy": share(_average_each(rights)),
        "longer_preferred": share(by_judge),
        "longer_preferred_by_people": share(by_people),
        "length_bias": mean(list(map(sub, by_judge, by_people))),
    }


def _average_each(values: Iterable[Sequence[float]]) -> list[float]:
    return [sum(own) / len(own) for own in values if own]


def describe_agreement(
    judge: str,
    data: str,
    found: Sequence[PromptAssessment],
    skipped_rows: int,
    top: float,
    compares: bool,
) -> dict[str, Any]:
    """Collects a judge's agreement with people as plain values for `report.evaluation`.

    Args:
        judge: Name of the judge.
        data: Name of the ranked responses.
        found: Assessments of all prompts.
        skipped_rows: Number of skipped rows.
        top: The highest score of the scale.
        compares: True if the judge also compared responses.
    """
    scores: list[float | None] = []
    scored: list[StoredJudgment] = []
    compared: list[StoredJudgment] = []
    for one in found:
        scores += one.scores
        scored += chain.from_iterable(one.judgments)
        compared += [pair.said for pair in one.pairs]
    ways = {"scores": _summarize_judgments(score_figures(found, top), scored)}
    if compares:
        ways["pairs"] = _summarize_judgments(pair_figures(found), compared)
    return {
        "judge": judge,
        "data": data,
        "prompts": len(found),
        "responses": sum(len(one.responses) for one in found),
        "unscored_responses": scores.count(None),
        "ways": ways,
        "skipped_rows": skipped_rows,
    }


def _summarize_judgments(
    figures: AgreementFigures, judgments: Sequence[StoredJudgment]
) -> dict[str, Any]:
    """Metrics, with None for NaN (JSON has no NaN), and counts of judgments."""
    plain: dict[str, dict[str, Any]] = {}
    for name, figure in figures.items():
        values = asdict(figure).items()
        plain[name] = {key: None if math.isnan(value) else value for key, value in values}
    causes = Counter(one.cause for one in judgments)
    counts = {
        "judgments": len(judgments),
        "no_verdict": len(judgments) - causes[None],
        "shortened": sum(one.shortened for one in judgments),
        **{cause: causes[cause] for cause in CAUSES if causes[cause]},
    }
    return {"figures": plain, "judgments": counts}
