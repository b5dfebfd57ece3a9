"""Metrics of a step's answers, verdicts and pairs, by the names that NeMo-Aligner's users know."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from lockstep.algorithms.self_rewarding.scoring import Scored
from lockstep.judge.judge import disagreement
from lockstep.judge.verdicts import ScoreParser
from lockstep.metrics import Mean, Metrics, StandardDeviation
from lockstep.objectives.pairing import AnswerPair, Status
from lockstep.rollouts.rollout import Rollouts

_STATUSES: tuple[Status, ...] = ("ok", "unscored", "tie", "identical", "unfinished")


def leak_test(pattern: str | None, parser: ScoreParser | None) -> Callable[[str], bool]:
    """Builds the test for answers that read like a judgement.

    Args:
        pattern: Regular expression of text that only judgements hold; None: any text that announces and gives a
            verdict. A number alone is none: it may well be the answer.
        parser: Parser of the judge; None: there is no judge.
    """
    if pattern is not None:
        return lambda text: re.search(pattern, text) is not None
    return lambda text: parser is not None and parser.announces_verdict(text) and parser(text).value is not None


def answer_metrics(rollouts: Rollouts, scored: Scored, leaks: Callable[[str], bool]) -> Metrics:
    """Metrics of the scores, lengths and ends of all answers.

    `top_class_share` is the share of the most frequent verdict: a judge that always says 5 has 1.
    `leaks` is the share of answers that read like judgements: a judge that never saw any may reward them.
    """
    scores = [score for score in scored.scores if score is not None]
    doubts = [doubt for one in scored.judged if (doubt := disagreement(one)) is not None]
    verdicts = Counter(value for one in scored.judged for value in one.values)
    length_B = rollouts.batch.per_sample(rollouts.batch.mask.long())
    squares = sum(score**2 for score in scores)
    return Metrics(
        generated_rewards=Mean(sum(scores), len(scores)),
        generated_rewards_std=StandardDeviation(len(scores), sum(scores), squares),
        judge_variance=Mean(sum(doubts), len(doubts)),
        top_class_share=Mean(max(verdicts.values(), default=0), verdicts.total()),
        leaks=Mean(sum(map(leaks, rollouts.responses)), len(rollouts.responses)),
        response_lengths=Mean(length_B.sum(), len(length_B)),
        bad_ends_per_GBS=Mean(rollouts.batch["truncated"].sum(), len(length_B)),
    )


def pair_metrics(pairs: Sequence[AnswerPair]) -> Metrics:
    """Metrics of the pairs: `bad_samples_per_GBS` are prompts without a pair to learn from, also counted by cause."""
    found = Counter(pair.status for pair in pairs)
    bad = Metrics(bad_samples_per_GBS=Mean(len(pairs) - found["ok"], len(pairs)))
    return bad + Metrics({f"pairs/{status}": Mean(found[status], len(pairs)) for status in _STATUSES})
