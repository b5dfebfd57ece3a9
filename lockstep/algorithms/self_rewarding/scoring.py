"""What answers are worth: by a program where the row names one, else by the judge; or all by a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.config import RewardSection
from lockstep.judge.build import response_case
from lockstep.judge.judge import Judge, Judged, judge_metrics, mean_score
from lockstep.metrics import Mean, Metrics, Sum
from lockstep.rewards.rewards import RewardError, find_unverified
from lockstep.rollouts.rollout import Rollouts
from lockstep.types import Prompt


@dataclass(frozen=True)
class Verifiers:
    """Programs that score answers in place of the judge.

    Attributes:
        section: Of which rows, and how; None: of none.
        low: The score of what they reward with 0.
        high: The score of what they reward with 1.
    """

    section: RewardSection | None
    low: float
    high: float

    def score(self, prompt: Prompt, reward: float) -> float | None:
        """A reward on the judge's scale; NaN is no verdict.

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
    """Scores of answers, and where they come from.

    Attributes:
        scores: Of each answer; None: nobody could say.
        judged: What the judge says of each: nothing of those that others score, for it is not asked.
        verified: Which of them a program scores; None where no row is one's.
        otherwise: Who scores those that no program does.
    """

    scores: Sequence[float | None]
    judged: Sequence[Judged[float]]
    verified: Sequence[bool] | None
    otherwise: Scorer = "judge"

    def scorer(self, place: int) -> Scorer:
        """Who scores an answer."""
        return "verifier" if self.verified is not None and self.verified[place] else self.otherwise

    def metrics(self) -> Metrics:
        """What the judge was asked; and, where programs score too, what each of them says."""
        asked = judge_metrics([one for one in self.judged if one.judgements]).with_prefix("judge")
        return asked if self.verified is None else asked + self._by_scorer(self.verified).with_prefix("train")

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
"""Says what a step's answers are worth."""


@dataclass(frozen=True)
class ByJudge:
    """Asks the judge about all answers that no program scores.

    Attributes:
        judge: Scores them.
        verifiers: Which ones programs score, and on what scale.
    """

    judge: Judge[float]
    verifiers: Verifiers

    def __call__(self, rollouts: Rollouts, step: int) -> Scored:
        """Of answers with the rewards of those that programs score.

        Raises:
            RewardError: A reward is not from 0 to 1.
            JudgeError: As from the judge.
        """
        section = self.verifiers.section
        waiting = find_unverified(section, rollouts.prompts)
        shown = enumerate(zip(rollouts.prompts, rollouts.responses, waiting, strict=True))
        cases = [
            response_case(prompt.conversation, response, (step, prompt.id, number))
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
    """As a reward model scored the answers when they were drawn."""
    return Scored(rollouts.batch["score"].tolist(), [Judged[float](())] * len(rollouts.prompts), None, "reward_model")
