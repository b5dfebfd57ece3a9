"""Scores of answers: by a program where the row names one, else by the judge; or all by a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.judge.build import response_case
from lockstep.judge.judge import Judge, Judged, judge_metrics, mean_score
from lockstep.metrics import Mean, Metrics, Sum
from lockstep.rewards.base import RewardError
from lockstep.rewards.options import RewardSection
from lockstep.rewards.row_rules import find_unverified
from lockstep.rollouts.rollout import Rollouts
from lockstep.types import Prompt


@dataclass(frozen=True)
class Verifiers:
    """Programs that score answers in place of the judge.

    Attributes:
        section: The rows and their programs; None: there are none.
        low: The judge's score for a reward of 0.
        high: The judge's score for a reward of 1.
    """

    section: RewardSection | None
    low: float
    high: float

    def score(self, prompt: Prompt, reward: float) -> float | None:
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
        verifiers: The programs, their rows, and the scale.
    """

    judge: Judge[float]
    verifiers: Verifiers

    def __call__(self, rollouts: Rollouts, step: int) -> Scored:
        """Scores answers, whose column `score` holds the rewards of those that programs score.

        Raises:
            RewardError: A reward is not from 0 to 1.
            JudgeError: From the judge.
        """
        section = self.verifiers.section
        waiting = find_unverified(section, rollouts.prompts)
        shown = enumerate(zip(rollouts.prompts, rollouts.responses, waiting, strict=True))
        cases = [
            response_case(prompt.conversation, response, (step, prompt.id, number), prompt.text)
            for number, (prompt, response, waits) in shown
            if waits
        ]
        verdicts = iter(self.judge(cases))
        judged = [next(verdicts) if waits else Judged[float](()) for waits in waiting]
        given = zip(rollouts.prompts, rollouts.batch["score"].tolist(), judged, waiting, strict=True)
        scores = [
            mean_score(one) if waits else self.verifiers.score(prompt, reward) for prompt, reward, one, waits in given
        ]
        return Scored(scores, judged, None if section is None else [not waits for waits in waiting])


def by_reward_model(rollouts: Rollouts, step: int) -> Scored:
    """The scores that a reward model gave when the answers were sampled."""
    return Scored(rollouts.batch["score"].tolist(), [Judged[float](())] * len(rollouts.prompts), None, "reward_model")
