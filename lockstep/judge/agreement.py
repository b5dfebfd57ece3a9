"""Agreement of a judge with people on ranked responses, which are scored, or compared in pairs and in both orders.

The outcome of a prompt is an `Assessment`, plain data that can be stored in a file; figures are computed from
assessments alone, so also from the file. Judgements without a verdict are in no figure, and are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from lockstep.data.ranked import RankedResponses
from lockstep.judge.build import pair_case, response_case
from lockstep.judge.judge import Judge, Judged, Judgement, mean_score
from lockstep.judge.verdicts import CAUSES, Winner
from lockstep.objectives.estimates import Estimate, mean, share
from lockstep.objectives.ranking import (
    decide_pairs,
    exact_match,
    kendall_tau,
    longer_preferred,
    spearman,
    tie_share,
    top_is_best,
)

Figures = dict[str, Estimate]


@dataclass(frozen=True)
class Said:
    """One judgement, as it is stored.

    Attributes:
        verdict: A score, or the number of the response that was preferred; None: no verdict.
        cause: The cause of a missing verdict.
        reply: Text of the judge's reply; None: it was not asked, or did not answer.
        shortened: True if the judge saw only the beginning of a response.
    """

    verdict: float | None
    cause: str | None
    reply: str | None
    shortened: bool


@dataclass(frozen=True)
class Comparison:
    """Two responses, by their numbers from 0, in the order in which the judge saw them."""

    first: int
    second: int
    said: Said

    @property
    def pair(self) -> tuple[int, int]:
        """The two numbers, in the same order for both comparisons."""
        return min(self.first, self.second), max(self.first, self.second)


@dataclass(frozen=True)
class Assessment:
    """A judge's judgements of the responses to one prompt.

    Attributes:
        id: Id of the prompt over runs.
        conversation: The prompt.
        responses: The responses.
        ranks: Their ranks by people, the best lowest.
        scores: The mean of each response's verdicts; None: no verdict.
        judgements: Judgements of each response.
        pairs: Comparisons of responses that people rank differently, each in both orders; may be empty.
    """

    id: str
    conversation: tuple[dict[str, Any], ...]
    responses: tuple[str, ...]
    ranks: tuple[float, ...]
    scores: tuple[float | None, ...]
    judgements: tuple[tuple[Said, ...], ...]
    pairs: tuple[Comparison, ...]


def assess(ranked: Sequence[RankedResponses], scorer: Judge[float], comparer: Judge[Winner] | None) -> list[Assessment]:
    """Has a judge score all responses and, with a comparer, compare them."""
    cases = [
        response_case(one.conversation, response, (one.id, number))
        for one in ranked
        for number, response in enumerate(one.responses)
    ]
    scored = iter(scorer(cases))
    compared = iter([] if comparer is None else _comparisons(ranked, comparer))
    return [_assessment(one, scored, [] if comparer is None else next(compared)) for one in ranked]


def _assessment(one: RankedResponses, scored: Iterator[Judged[float]], pairs: Sequence[Comparison]) -> Assessment:
    judged = [next(scored) for _ in one.responses]
    return Assessment(
        one.id,
        tuple(dict(message) for message in one.conversation),
        one.responses,
        one.ranks,
        tuple(map(mean_score, judged)),
        tuple(tuple(_build_said(own, said, said.verdict.value) for said in own.judgements) for own in judged),
        tuple(pairs),
    )


def _comparisons(ranked: Sequence[RankedResponses], comparer: Judge[Winner]) -> Iterator[list[Comparison]]:
    """Yields the comparisons of each prompt's responses."""
    asked = [list(_orders(one)) for one in ranked]
    cases = [
        pair_case(one.conversation, one.responses[first], one.responses[second], (one.id, first, second))
        for one, orders in zip(ranked, asked, strict=True)
        for first, second in orders
    ]
    judged = iter(comparer(cases))
    for orders in asked:
        yield [_build_comparison(first, second, next(judged)) for first, second in orders]


def _orders(one: RankedResponses) -> Iterator[tuple[int, int]]:
    for a, b in combinations(range(len(one.responses)), 2):
        if one.ranks[a] != one.ranks[b]:
            yield from ((a, b), (b, a))


def _build_comparison(first: int, second: int, judged: Judged[Winner]) -> Comparison:
    (judgement,) = judged.judgements
    winner = judgement.verdict.value
    preferred = None if winner is None else float(first if winner == "A" else second)
    return Comparison(first, second, _build_said(judged, judgement, preferred))


def _build_said(judged: Judged[Any], judgement: Judgement[Any], verdict: float | None) -> Said:
    reply = None if judgement.answer is None else judgement.answer.text
    return Said(verdict, judgement.verdict.cause, reply, judged.shortened)


@dataclass(frozen=True)
class Decision:
    """A pair of responses that people rank differently, and the judge's decision.

    Attributes:
        right: 1 if it agrees with people, 0 if not, ½ for a tie.
        excess: Characters by which the response that people prefer is longer.
    """

    right: float
    excess: int


def score_figures(assessments: Sequence[Assessment], top: float) -> Figures:
    """Agreement of scores, each prompt weighing the same, with 95 % intervals over prompts.

    Args:
        assessments: Assessments of all prompts.
        top: The highest score of the scale.
    """
    scored = [_with_score(one) for one in assessments]

    def over(measure: Callable[[Sequence[float], Sequence[float]], float | None]) -> list[float]:
        return _there(measure(ranks, scores) for ranks, scores, _ in scored)

    decisions = [
        [Decision(right, lengths[better] - lengths[worse]) for better, worse, right in decide_pairs(ranks, scores)]
        for ranks, scores, lengths in scored
    ]
    return {
        **_common(decisions),
        "ties": share(over(tie_share)),
        "exact_match": share(over(exact_match)),
        "top_is_best": share(over(lambda ranks, scores: top_is_best(ranks, scores, top))),
        "spearman": mean(over(spearman)),
        "kendall_tau": mean(over(kendall_tau)),
    }


def _with_score(one: Assessment) -> tuple[list[float], list[float], list[int]]:
    """Ranks, scores and lengths of the responses that have a score."""
    columns = zip(one.ranks, one.scores, one.responses, strict=True)
    scored = [(rank, score, len(response)) for rank, score, response in columns if score is not None]
    return [rank for rank, _, _ in scored], [score for _, score, _ in scored], [length for _, _, length in scored]


def pair_figures(assessments: Sequence[Assessment]) -> Figures:
    """Agreement of pairwise comparisons, likewise with intervals, and the influence of the order of the responses.

    `first_preferred` is the share of verdicts for the response that is shown first; `consistent` that of the pairs with
    two verdicts in which both are for the same response, and `consistent_accuracy` how often it is then the right one.
    """
    verdicts = [[pair for pair in one.pairs if pair.said.verdict is not None] for one in assessments]
    decisions = [[_decision(one, pair) for pair in own] for one, own in zip(assessments, verdicts, strict=True)]
    twice = [_in_both_orders(one, own) for one, own in zip(assessments, verdicts, strict=True)]
    return {
        **_common(decisions),
        "first_preferred": share(_averages([[pair.said.verdict == pair.first for pair in own] for own in verdicts])),
        "consistent": share(_averages([[a == b for a, b in own] for own in twice])),
        "consistent_accuracy": share(_averages([[a for a, b in own if a == b] for own in twice])),
    }


def _decision(one: Assessment, pair: Comparison) -> Decision:
    better, worse = sorted(pair.pair, key=lambda number: one.ranks[number])
    return Decision(float(pair.said.verdict == better), len(one.responses[better]) - len(one.responses[worse]))


def _in_both_orders(one: Assessment, verdicts: Sequence[Comparison]) -> list[tuple[float, float]]:
    """Correctness of the judge in either order, for pairs that have a verdict in both."""
    found: dict[tuple[int, int], list[float]] = {}
    for pair in verdicts:
        found.setdefault(pair.pair, []).append(_decision(one, pair).right)
    return [(rights[0], rights[1]) for rights in found.values() if len(rights) == 2]


def _common(decisions: Sequence[Sequence[Decision]]) -> Figures:
    """Accuracy, and its dependence on length."""
    rights = [[decision.right for decision in own] for own in decisions]
    excesses = [[decision.excess for decision in own] for own in decisions]
    judge = [longer_preferred(own, excess) for own, excess in zip(rights, excesses, strict=True)]
    people = [longer_preferred([1.0] * len(excess), excess) for excess in excesses]
    both = [(a, b) for a, b in zip(judge, people, strict=True) if a is not None and b is not None]
    return {
        "pairwise_accuracy": share(_averages(rights)),
        "longer_preferred": share([a for a, _ in both]),
        "longer_preferred_by_people": share([b for _, b in both]),
        "length_bias": mean([a - b for a, b in both]),
    }


def counts(said: Sequence[Said]) -> dict[str, float]:
    """Counts judgements; those without a verdict, by cause; and those of shortened responses."""
    causes = Counter(one.cause for one in said)
    return {
        "judgements": len(said),
        "no_verdict": len(said) - causes[None],
        "shortened": sum(one.shortened for one in said),
        **{cause: causes[cause] for cause in CAUSES if causes[cause]},
    }


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _averages(values: Iterable[Sequence[float]]) -> list[float]:
    return [sum(own) / len(own) for own in values if own]


def describe_agreement(
    judge: str, data: str, found: Sequence[Assessment], skipped_rows: int, top: float, compares: bool
) -> dict[str, Any]:
    """Collects the agreement of a judge with people as plain values (`report.evaluation` reads them).

    Args:
        judge: Names the judge.
        data: Names the ranked responses.
        found: Assessments of all prompts.
        skipped_rows: Rows that were left out.
        top: The highest score of the scale.
        compares: True if the judge compared responses, too.
    """
    said = [said for one in found for own in one.judgements for said in own]
    ways = {"scores": {"figures": _plain(score_figures(found, top)), "judgements": counts(said)}}
    if compares:
        compared = [pair.said for one in found for pair in one.pairs]
        ways["pairs"] = {"figures": _plain(pair_figures(found)), "judgements": counts(compared)}
    return {
        "judge": judge,
        "data": data,
        "prompts": len(found),
        "responses": sum(len(one.responses) for one in found),
        "unscored_responses": sum(score is None for one in found for score in one.scores),
        "ways": ways,
        "skipped_rows": skipped_rows,
    }


def _plain(figures: Figures) -> dict[str, Any]:
    """Replaces NaN by None, since JSON has no NaN."""
    return {
        name: {key: value if value == value else None for key, value in asdict(figure).items()}
        for name, figure in figures.items()
    }
