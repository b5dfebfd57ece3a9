"""Answers of a step: scores by a program, the judge or a reward model; the pair of each prompt; their metrics."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics, StandardDeviation, Sum
from lockstep.core.types import Prompt
from lockstep.judge.build import response_case
from lockstep.judge.judge import Judge, Judged, disagreement, judge_metrics, mean_score
from lockstep.judge.verdicts import ScoreParser
from lockstep.objectives.pairing import AnswerPair, Candidate, Status, choose
from lockstep.rewards.base import RewardError
from lockstep.rewards.options import RewardSection
from lockstep.rewards.row_rules import find_unverified
from lockstep.rollouts.rollout import Rollouts

Scorer = Literal["judge", "verifier", "reward_model"]


@dataclass(frozen=True)
class Scored:
    """Scores of answers, and their scorers.

    Attributes:
        scores: Score of each answer; None: no verdict.
        judged: Judgements of each answer; empty where the judge was not asked.
        verified: True for answers that a program scores; None where none are.
        otherwise: The scorer of all answers that no program scores.
    """

    scores: Sequence[float | None]
    judged: Sequence[Judged[float]]
    verified: Sequence[bool] | None
    otherwise: Scorer = "judge"

    def scorer(self, place: int) -> Scorer:
        """The scorer of an answer."""
        return "verifier" if self.verified is not None and self.verified[place] else self.otherwise

    def metrics(self) -> Metrics:
        """Metrics of the judge; and, where programs score too, of each scorer."""
        metrics = judge_metrics([one for one in self.judged if one.judgements]).with_prefix("judge")
        return metrics if self.verified is None else metrics + self._by_scorer(self.verified).with_prefix("train")

    def _by_scorer(self, verified: Sequence[bool]) -> Metrics:
        both = list(zip(self.scores, verified, strict=True))
        programs = [score for score, own in both if own and score is not None]
        judge = [score for score, own in both if not own and score is not None]
        return Metrics(
            verified=Mean(sum(verified), len(verified)),
            verified_rewards=Mean(sum(programs), len(programs)),
            judged_rewards=Mean(sum(judge), len(judge)),
            verifier_no_verdict=Sum(sum(verified) - len(programs)),
        )


Scoring = Callable[[Rollouts, int], Scored]
"""Scores a step's answers."""


@dataclass(frozen=True)
class ByJudge:
    """A scorer that asks the judge about all answers that no program scores.

    Attributes:
        judge: The judge.
        section: The rows that programs score; None: there are none.
        low: The judge's score for a reward of 0.
        high: The judge's score for a reward of 1.
    """

    judge: Judge[float]
    section: RewardSection | None
    low: float
    high: float

    def __call__(self, rollouts: Rollouts, step: int) -> Scored:
        """Scores answers, whose column `score` holds the rewards of those that programs score.

        Raises:
            RewardError: A reward is not from 0 to 1.
            JudgeError: From the judge.
        """
        waiting = find_unverified(self.section, rollouts.prompts)
        shown = enumerate(zip(rollouts.prompts, rollouts.responses, waiting, strict=True))
        cases = [
            response_case(prompt.conversation, response, (step, prompt.id, number), prompt.text)
            for number, (prompt, response, waits) in shown
            if waits
        ]
        verdicts = iter(self.judge(cases))
        judged = [next(verdicts) if waits else Judged[float](()) for waits in waiting]
        given = zip(rollouts.prompts, rollouts.batch["score"].tolist(), judged, waiting, strict=True)
        scores = [mean_score(one) if waits else self._rescale(prompt, reward) for prompt, reward, one, waits in given]
        return Scored(scores, judged, None if self.section is None else [not waits for waits in waiting])

    def _rescale(self, prompt: Prompt, reward: float) -> float | None:
        """Maps a reward to the judge's scale; NaN is no verdict.

        Raises:
            RewardError: It is not from 0 to 1.
        """
        if math.isnan(reward):
            return None
        if not 0 <= reward <= 1:
            raise RewardError(
                f"{prompt.id}: its verifier gives {reward:g}, but beside a judge rewards go from 0 to 1, which becomes "
                f"{self.low:g} to {self.high:g}; let verifier.function return such a number"
            )
        return self.low + reward * (self.high - self.low)


def by_reward_model(rollouts: Rollouts, step: int) -> Scored:
    """The scores that a reward model gave when the answers were sampled."""
    return Scored(rollouts.batch["score"].tolist(), [Judged[float](())] * len(rollouts.prompts), None, "reward_model")


@dataclass(frozen=True)
class RankedAnswers:
    """Scored answers, and the chosen pair of each prompt.

    Attributes:
        rollouts: All answers, those to one prompt next to each other.
        scored: Their scores, and the scorers.
        pairs: One for each prompt.
    """

    rollouts: Rollouts
    scored: Scored
    pairs: Sequence[AnswerPair]

    @property
    def judged(self) -> Sequence[Judged[float]]:
        """Judgements of each answer."""
        return self.scored.judged

    @property
    def group(self) -> int:
        """Number of answers to each prompt."""
        return len(self.judged) // len(self.pairs)

    @property
    def usable(self) -> int:
        """Number of pairs to learn from."""
        return sum(pair.status == "ok" for pair in self.pairs)

    def batch(self) -> Batch:
        """The chosen and the rejected answer of each pair to learn from, next to each other, with their scores.

        The policy itself is trained, at temperature 1 over all tokens, not the distribution that was sampled from.
        """
        rows = [
            prompt * self.group + place
            for prompt, pair in enumerate(self.pairs)
            if pair.status == "ok" and pair.chosen is not None and pair.rejected is not None
            for place in (pair.chosen, pair.rejected)
        ]
        batch = self.rollouts.batch.select(rows)
        return Batch(batch.tokens, batch.lengths, {"mask": batch.mask}, {"score": batch["score"]}, group_size=2)

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """The first prompts with their chosen pair, as rows of JSON types."""
        return [_sample_row(self, prompt, pair) for prompt, pair in enumerate(self.pairs[:count])]


def choose_pairs(rollouts: Rollouts, found: Scored, length_control: float, group: int) -> RankedAnswers:
    """Chooses pairs from answers, `group` to each prompt, with length control ρ; see `objectives.pairing`."""
    sequences = zip(rollouts.batch.sequences(), rollouts.batch.sequences("mask"), strict=True)
    tokens = [tuple(sequence[mask].tolist()) for sequence, mask in sequences]
    cut = rollouts.batch["truncated"].tolist()
    answers = [
        Candidate(own, not unfinished, score, disagreement(one))
        for own, unfinished, score, one in zip(tokens, cut, found.scores, found.judged, strict=True)
    ]
    pairs = [choose(answers[start : start + group], length_control) for start in range(0, len(answers), group)]
    score_B = torch.tensor([float("nan") if answer.score is None else answer.score for answer in answers])
    batch = rollouts.batch.with_columns(sample={"score": score_B})
    return RankedAnswers(Rollouts(batch, rollouts.prompts, rollouts.responses), found, pairs)


def _sample_row(own: RankedAnswers, prompt: int, pair: AnswerPair) -> dict[str, Any]:
    first = prompt * own.group
    scores = own.scored.scores[first : first + own.group]
    asked = own.rollouts.prompts[first]
    row = {"id": asked.id, "prompt": asked.text, "status": pair.status, "scores": list(scores)}
    row |= {"scored_by": own.scored.scorer(first)}
    for name, place in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if place is not None:
            replies = [one.answer.text for one in own.judged[first + place].judgements if one.answer is not None]
            row |= {name: own.rollouts.responses[first + place], f"{name}_score": scores[place]}
            row |= {f"{name}_judgements": replies}
    return row


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
