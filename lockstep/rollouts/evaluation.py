"""Evaluation: samples responses to every question, grades them and computes metrics.

The trainer's validation and `lockstep eval` share this code. A graded response is a `GradedSample`,
plain data that can be stored in a file; metrics depend only on samples, so the file is enough.

A response without a verdict is neither right nor wrong. It is counted and left out: a question's
metrics are computed over its graded responses, and a question with fewer than k of them is left out
of pass@k and maj@k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, assert_never

import torch
from torch import Tensor

from lockstep.config import RepeatedSampling
from lockstep.core.errors import InputError
from lockstep.core.metrics import Max, Mean, Metrics, Sum
from lockstep.core.types import Prompt, SamplingParams
from lockstep.environments.options import EnvironmentSection
from lockstep.objectives.estimates import MeanEstimate, majority_at_k, mean, pass_at_k, share
from lockstep.rewards.base import CutOffReward, Reward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.math_verifier import verify_equal
from lockstep.rewards.options import CodeSection, InstructionSection, RewardSection
from lockstep.rewards.reward_model import RewardModelScorer
from lockstep.rollouts.rollout import PART, RolloutCollector

EvalFigures = dict[str, MeanEstimate]
"""Estimates by name, in display order: `reward`, `pass@1`, `pass@4`, `maj@4`, …"""


@dataclass(frozen=True)
class GradedSample:
    """One graded response to one question.

    Attributes:
        question: Index of the data row, from 0 over the rows in use.
        id: Id of the row, `file:line`.
        draw: Index of this response among the question's, from 0.
        prompt: The prompt as the model reads it.
        response: The response as text.
        answer: The right answer, as `data.answer` renders it.
        score: The reward; None: no verdict.
        vote: Name of the response's answer, shared by equal answers to this question; None: no
            valid answer.
        tokens: Length of the response, tokens.
        truncated: True if the response was truncated.
        parts: Rewards of a sum's parts, by name; None: no verdict.
    """

    question: int
    id: str
    draw: int
    prompt: str
    response: str
    answer: str
    score: float | None
    vote: str | None
    tokens: int
    truncated: bool
    parts: Mapping[str, float | None] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """A row of the sample log, of a held-out prompt."""
        return {
            "held_out": True,
            "id": self.id,
            "prompt": self.prompt,
            "response": self.response,
            "answer": self.answer,
            "score": self.score,
            **{f"{PART}{name}": score for name, score in self.parts.items()},
            "tokens": self.tokens,
            "truncated": self.truncated,
        }


def sample_answers(
    collector: RolloutCollector,
    prompts: Sequence[Prompt],
    position: int,
    sampling: SamplingParams,
    num_samples: int,
) -> tuple[list[GradedSample], Metrics]:
    """Samples and grades `num_samples` responses to each prompt.

    Random numbers are keyed by question and sample number, not by batch: 4 samples are the first 4
    of 16.

    Args:
        collector: Samples and grades.
        prompts: The questions.
        position: Row of the first prompt.
        sampling: The sampling distribution of responses.
        num_samples: Number of responses per question, which are neighbors in the result.

    Returns:
        The samples, and metrics of judges.
    """
    rollouts = collector.validate(prompts, position, sampling, num_samples)
    tokens = rollouts.batch.per_sample(rollouts.batch.mask.long()).tolist()
    truncated = rollouts.batch["truncated"].tolist()
    scores = _read_scores(rollouts.batch["score"])
    parts = dict[str, list[float | None]]()
    for name, score_B in rollouts.batch.sample.items():
        if name.startswith(PART):
            parts[name.removeprefix(PART)] = _read_scores(score_B)
    replaced = isinstance(collector.reward, CutOffReward) and collector.reward.value is not None
    judged: list[float | None] = []
    for cut, score in zip(truncated, scores, strict=True):
        judged.append(None if replaced and cut else score)
    texts = [prompt.text for prompt in rollouts.prompts]
    votes = name_votes(collector.reward, texts, rollouts.responses, judged, num_samples)
    samples = list[GradedSample]()
    for i, prompt in enumerate(rollouts.prompts):
        sample = GradedSample(
            question=position + i // num_samples,
            id=prompt.id,
            draw=i % num_samples,
            prompt=prompt.text,
            response=rollouts.responses[i],
            answer=collector.prompts.answer(prompt),
            score=scores[i],
            vote=votes[i],
            tokens=tokens[i],
            truncated=truncated[i],
            parts={name: own[i] for name, own in parts.items()},
        )
        samples.append(sample)
    return samples, rollouts.judging.with_prefix("judge")


def _read_scores(score_B: Tensor) -> list[float | None]:
    """Scores as numbers; None: no verdict."""
    return [score if score == score else None for score in score_B.tolist()]


def name_votes(
    reward: Reward | RewardModelScorer,
    prompts: Sequence[str],
    responses: Sequence[str],
    scores: Sequence[float | None],
    num_samples: int,
) -> list[str | None]:
    """Names the answer of each response; equal answers to a question share a name.

    None: no valid answer, or a reward without answers.
    """
    own = reward.reward if isinstance(reward, CutOffReward) else reward
    if not isinstance(own, MathReward):
        return [None] * len(responses)
    votes: list[str | None] = []
    for start in range(0, len(responses), num_samples):
        question = slice(start, start + num_samples)
        answers = [own.extract_answer(response, prompts[start]) for response in responses[question]]
        votes += _group_answers(answers, scores[question])
    return votes


def _group_answers(
    answers: Sequence[str | None], scores: Sequence[float | None]
) -> list[str | None]:
    """Names answers by the first equal answer (math-verify); right answers share one name."""
    right = next((text for text, score in zip(answers, scores, strict=True) if score), None)
    names: dict[str, str | None] = {}
    votes: list[str | None] = []
    for text, score in zip(answers, scores, strict=True):
        if score:
            votes.append(right)
        elif score is None or text is None:
            votes.append(None)
        elif text in names:
            votes.append(names[text])
        else:
            names[text] = None  # unreadable
            if verify_equal(text, text):
                groups = dict.fromkeys(name for name in names.values() if name is not None)
                equal = (name for name in groups if verify_equal(name, text))
                names[text] = next(equal, text)
            votes.append(names[text])
    return votes


@dataclass(frozen=True)
class GradingRule:
    """The metrics that a recipe's reward supports.

    Attributes:
        pass_score: Minimum reward of a passing response; None: no pass@k.
        majority: True if responses have votes.
        graded: True if rewards have partial credit, so that their mean is a separate metric.
    """

    pass_score: float | None
    majority: bool
    graded: bool

    def require_passes(self, section: RepeatedSampling, option: str) -> None:
        """Raises InputError if the section `option` sets k of pass@k without a pass score."""
        if section.k is not None and self.pass_score is None:
            raise InputError(
                f"{option}.k requires a passing score; set the reward's pass_score, or leave "
                f"{option}.k out"
            )

    def compute_figures(self, samples: Sequence[GradedSample], ks: Sequence[int]) -> EvalFigures:
        """Computes metrics from samples, with 95 % intervals over questions.

        Args:
            samples: Samples; samples of one question are neighbors.
            ks: The k of pass@k and, from 2 on, of maj@k.
        """
        figures: EvalFigures = {}
        questions = list[list[GradedSample]]()
        for _, own in groupby(samples, key=attrgetter("question")):
            questions.append([sample for sample in own if sample.score is not None])
        if self.graded:
            rewards = _question_means((sample.question, sample.score) for sample in samples)
            figures["reward"] = _estimate_reward(rewards)
        for name in dict.fromkeys(chain.from_iterable(sample.parts for sample in samples)):
            rewards = _question_means(
                (sample.question, sample.parts.get(name)) for sample in samples
            )
            figures[f"{PART}{name}"] = _estimate_reward(rewards)
        for k in ks if self.pass_score is not None else ():
            enough = [own for own in questions if len(own) >= k]
            figures[f"pass@{k}"] = share(
                [pass_at_k(len(own), self._num_passed(own), k) for own in enough]
            )
            if self.majority and k > 1:
                figures[f"maj@{k}"] = share([self._majority_score(own, k) for own in enough])
        return figures

    def compute_metrics(self, samples: Sequence[GradedSample], ks: Sequence[int]) -> Metrics:
        """Computes the metrics of a run.

        `accuracy`, or `reward` if rewards are graded, is the main metric.

        Each metric also has the bounds of its interval, such as `accuracy_low` and `accuracy_high`.
        """
        figures = self.compute_figures(samples, ks)
        if not self.graded:
            figures = {"accuracy": figures["pass@1"], **figures}
        values = Metrics({name: Mean(figure.value) for name, figure in figures.items()})
        return sum(
            (figure.build_interval_metrics(name) for name, figure in figures.items()), values
        ) + length_metrics(samples)

    def _num_passed(self, own: Sequence[GradedSample]) -> int:
        assert self.pass_score is not None, "passing needs a pass score"
        return sum(sample.score is not None and sample.score >= self.pass_score for sample in own)

    def _majority_score(self, own: Sequence[GradedSample], k: int) -> float:
        right = self._num_passed(own)
        wrong = Counter(
            sample.vote for sample in own if sample.vote is not None and not sample.score
        )
        silent = len(own) - right - wrong.total()
        return majority_at_k(right, tuple(sorted(wrong.values())), silent, k)


def grading(
    section: RewardSection | None, environment: EnvironmentSection | None = None
) -> GradingRule:
    """The grading of responses by the recipe's reward, environment or reward model."""
    if section is None:
        return _build_grading(None if environment is None else environment.pass_score)
    match section.type:
        case "math":
            return GradingRule(pass_score=1.0, majority=True, graded=False)
        case "instructions":
            return GradingRule(
                pass_score=1.0, majority=False, graded=not _all_or_nothing(section.instructions)
            )
        case "code":
            return GradingRule(
                pass_score=1.0, majority=False, graded=not _all_or_nothing(section.code)
            )
        case "python" | "server" | "judge" | "sum":
            return _build_grading(section.pass_score)
        case "by_row":
            if not section.has_own_scale:
                return GradingRule(pass_score=1.0, majority=False, graded=True)
            return _build_grading(section.pass_score)
        case _:
            assert_never(section.type)


def _build_grading(pass_score: float | None) -> GradingRule:
    # Scores are fp32, so the threshold is too; otherwise 0.7 would not pass at 0.7.
    return GradingRule(
        None if pass_score is None else float(torch.tensor(pass_score)), majority=False, graded=True
    )


def _all_or_nothing(options: InstructionSection | CodeSection | None) -> bool:
    """True if a verifier gives only 1 or 0, without partial credit."""
    return options is not None and options.all_or_nothing


def length_metrics(samples: Sequence[GradedSample]) -> Metrics:
    """Metrics of lengths, truncation and missing verdicts."""
    tokens = [sample.tokens for sample in samples]
    return Metrics(
        no_verdict=Sum(sum(sample.score is None for sample in samples)),
        response_length=Mean(sum(tokens), len(tokens)),
        response_length_max=Max(max(tokens)),
        truncated=Mean(sum(sample.truncated for sample in samples), len(samples)),
    )


def _estimate_reward(rewards: Sequence[float]) -> MeanEstimate:
    """The mean reward of a question; its interval stays in [0, 1] if all rewards are there."""
    if all(0.0 <= reward <= 1.0 for reward in rewards):
        return share(rewards)
    return mean(rewards)


def _question_means(rewards: Iterable[tuple[int, float | None]]) -> list[float]:
    """The mean reward of each question with a verdict, from pairs of question and reward."""
    means = list[float]()
    for _, pairs in groupby(rewards, key=itemgetter(0)):
        known = [reward for _, reward in pairs if reward is not None]
        if known:
            means.append(sum(known) / len(known))
    return means
