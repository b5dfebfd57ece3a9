"""A step's answers, their judgments, the pair of each prompt, and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.algorithms.learn_pairs import list_answers, select_pairs
from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics, StandardDeviation
from lockstep.judge.build import response_case
from lockstep.judge.judge import CaseJudgments, LLMJudge, mean_score, score_variance
from lockstep.objectives.pairing import AnswerPair, PairCandidate, PairStatus, choose_pair
from lockstep.rollouts.rollout import Rollouts


def judge_answers(
    rollouts: Rollouts, judge: LLMJudge[float], key: int
) -> list[CaseJudgments[float]]:
    """Asks the judge to score each answer; `key` keys the random numbers."""
    answered = enumerate(zip(rollouts.prompts, rollouts.responses, strict=True))
    return judge(
        [
            response_case(prompt.conversation, response, (key, prompt.id, number), prompt.text)
            for number, (prompt, response) in answered
        ]
    )


@dataclass(frozen=True)
class RankedAnswers:
    """Scored answers and the pair chosen for each prompt.

    Attributes:
        rollouts: All answers with their scores; answers to one prompt are neighbors.
        judged: Judgments of the answers.
        pairs: One pair per prompt.
    """

    rollouts: Rollouts
    judged: Sequence[CaseJudgments[float]]
    pairs: Sequence[AnswerPair]

    @property
    def group_size(self) -> int:
        """Number of answers per prompt."""
        return len(self.judged) // len(self.pairs)

    @property
    def usable_pair_count(self) -> int:
        """Number of pairs to train on."""
        return sum(pair.status == "ok" for pair in self.pairs)

    def build_pair_batch(self) -> Batch:
        """The pairs to train on."""
        return select_pairs(self.rollouts.batch, self.pairs, self.group_size)

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """The first prompts with their pairs, as rows of JSON types."""
        rows: list[dict[str, Any]] = []
        for number, pair in enumerate(self.pairs[:count]):
            first = number * self.group_size
            prompt = self.rollouts.prompts[first]
            scores = list(map(mean_score, self.judged[first:][: self.group_size]))
            row = {"id": prompt.id, "prompt": prompt.text, "status": pair.status, "scores": scores}
            for name, index in (("chosen", pair.chosen), ("rejected", pair.rejected)):
                if index is not None:
                    replies = [one.answer for one in self.judged[first + index].judgments]
                    row[name] = self.rollouts.responses[first + index]
                    row[f"{name}_score"] = scores[index]
                    row[f"{name}_judgments"] = [one.text for one in replies if one is not None]
            rows.append(row)
        return rows


def choose_pairs(
    rollouts: Rollouts, judged: Sequence[CaseJudgments[float]], length_control: float, group: int
) -> RankedAnswers:
    """Chooses a pair per prompt of `group` answers, with length control; see `pairing`."""
    cut = rollouts.batch["truncated"].tolist()
    answers: list[PairCandidate] = []
    for own, unfinished, one in zip(list_answers(rollouts.batch), cut, judged, strict=True):
        answers.append(PairCandidate(own, not unfinished, mean_score(one), score_variance(one)))
    pairs: list[AnswerPair] = []
    for start in range(0, len(answers), group):
        pairs.append(choose_pair(answers[start : start + group], length_control))
    score_B = torch.tensor(
        [float("nan") if answer.score is None else answer.score for answer in answers]
    )
    batch = rollouts.batch.with_columns(sample={"score": score_B})
    return RankedAnswers(Rollouts(batch, rollouts.prompts, rollouts.responses), judged, pairs)


_STATUSES: tuple[PairStatus, ...] = ("ok", "unscored", "tie", "identical", "unfinished")


def answer_metrics(rollouts: Rollouts, judged: Sequence[CaseJudgments[float]]) -> Metrics:
    """Metrics of the scores, lengths and truncation of all answers.

    `top_class_share` is the share of the most frequent verdict; it is 1 for a judge that always
    gives 5.
    """
    scores = [score for one in judged if (score := mean_score(one)) is not None]
    doubts = [doubt for one in judged if (doubt := score_variance(one)) is not None]
    verdicts = Counter(value for one in judged for value in one.values)
    length_B = rollouts.batch.per_sample(rollouts.batch.mask.long())
    squares = sum(score**2 for score in scores)
    return Metrics(
        generated_rewards=Mean(sum(scores), len(scores)),
        generated_rewards_std=StandardDeviation(len(scores), sum(scores), squares),
        judge_variance=Mean(sum(doubts), len(doubts)),
        top_class_share=Mean(max(verdicts.values(), default=0), verdicts.total()),
        response_lengths=Mean(length_B.sum(), len(length_B)),
        bad_ends_per_GBS=Mean(rollouts.batch["truncated"].sum(), len(length_B)),
    )


def pair_metrics(pairs: Sequence[AnswerPair]) -> Metrics:
    """Metrics of the pairs; `bad_samples_per_GBS` counts prompts without a usable pair."""
    counts = Counter(pair.status for pair in pairs)
    bad = Metrics(bad_samples_per_GBS=Mean(len(pairs) - counts["ok"], len(pairs)))
    return bad + Metrics(
        {f"pairs/{status}": Mean(counts[status], len(pairs)) for status in _STATUSES}
    )
