"""Rewards by an LLM judge (`lockstep.judge`): its mean score, mapped to 0 … 1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.types import Prompt
from lockstep.data.thoughts import drop_thought
from lockstep.judge.build import response_case
from lockstep.judge.judge import JudgeCase, LLMJudge, judge_metrics, mean_score
from lockstep.rewards.base import DetailedReward, RewardResults


@dataclass(frozen=True)
class JudgeReward(DetailedReward):
    """The mean score of a judge, mapped from its scale to 0 … 1; None without a verdict.

    Random numbers depend only on prompt and response, so that equal ones have the same score in
    every step.

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
        cases = list[JudgeCase]()
        for prompt, response in zip(prompts, responses, strict=True):
            question = list(map(dict, prompt.conversation))
            answer = drop_thought(response, prompt.text)
            shown = json.dumps([question, answer], sort_keys=True).encode()
            digest = hashlib.sha256(shown).hexdigest()[:32]
            cases.append(response_case(prompt.conversation, response, (digest,), prompt.text))
        judged = self.scorer(cases)
        rewards = list[float | None]()
        for score in map(mean_score, judged):
            if score is None:
                rewards.append(None)
            else:
                rewards.append((score - self.low) / (self.high - self.low))
        return RewardResults(rewards, metrics=judge_metrics(judged))
