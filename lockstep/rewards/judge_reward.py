"""Rewards by an LLM judge (`lockstep.judge`): its mean score, mapped to 0 … 1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.types import Prompt
from lockstep.data.thoughts import drop_thought
from lockstep.judge.build import response_case
from lockstep.judge.judge import LLMJudge, judge_metrics, mean_score
from lockstep.rewards.base import DetailedReward, RewardResults


@dataclass(frozen=True)
class JudgeReward(DetailedReward):
    """The mean score of a judge, mapped from its scale to 0 … 1; None without a verdict.

    Random numbers depend only on prompt and response, so that equal ones get the same score in any
    step.

    Attributes:
        scorer: The judge.
        low: Lowest score of the judge.
        high: Highest score of the judge.
    """

    scorer: LLMJudge[float]
    low: float
    high: float

    def compute_results(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> RewardResults:
        """Scores the responses.

        Raises:
            JudgeError: More judgments than the recipe allows have no verdict.
            ServerError: The server did not answer any question.
        """
        if not prompts:
            return RewardResults([])
        asked = zip(prompts, responses, strict=True)
        cases = [
            response_case(
                prompt.conversation, response, (_digest_question(prompt, response),), prompt.text
            )
            for prompt, response in asked
        ]
        judged = self.scorer(cases)
        return RewardResults(
            [self._scale_score(mean_score(one)) for one in judged], metrics=judge_metrics(judged)
        )

    def _scale_score(self, score: float | None) -> float | None:
        if score is None:
            return None
        return (score - self.low) / (self.high - self.low)


def _digest_question(prompt: Prompt, response: str) -> str:
    answer = drop_thought(response, prompt.text)
    shown = json.dumps([[dict(message) for message in prompt.conversation], answer], sort_keys=True)
    return hashlib.sha256(shown.encode()).hexdigest()[:32]
