"""Self-rewarding training: Yuan et al. 2024, with the length control of Wu et al. 2024.

The model answers, judges its own answers, and learns from the best and the worst by DPO. An iteration goes through the
prompts; what acts and judges in it is the policy that it began with. At its end that policy is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.algorithms.self_rewarding.verdicts import answer_metrics, leak_test, pair_metrics
from lockstep.algorithms.step import StepResult
from lockstep.batch import Batch
from lockstep.experience.judge.build import response_case
from lockstep.experience.judge.judge import Case, Judge, Judged, judge_metrics, mean_score, score_variance
from lockstep.experience.rollout import Experience, Rollouts
from lockstep.learners.base import Learner, hand_over, train
from lockstep.losses.preference import build as preference_loss
from lockstep.metrics import Last, Metrics, Sum
from lockstep.objectives.pairing import Answer, Pair, choose
from lockstep.recipe import SelfRewarding
from lockstep.types import Phase, SamplingParams


@dataclass(frozen=True)
class SelfRewardingWorkers:
    """Who does the work: π, the frozen π_ref, the source of answers, and the judge, who may be the same model."""

    policy: Learner
    reference: Learner
    experience: Experience
    judge: Judge[float]
    phase: Phase


@dataclass(frozen=True)
class Rules:
    """A recipe's options, ready for use in the step.

    Attributes:
        rows: Prompts that an iteration goes through.
        epochs: How often it does.
        num_logged_samples: Prompts of a step that the sample log shows.
    """

    options: SelfRewarding
    sampling: SamplingParams
    rows: int
    epochs: int
    num_logged_samples: int

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps; prompts that do not fill one are left over."""
        return self.rows * self.epochs // self.options.global_batch_size

    def position(self, step: int) -> int:
        """Row of the run at which a step begins; each iteration begins with rows of its own."""
        iteration, within = divmod(step, self.steps_per_iteration)
        return iteration * self.rows * self.epochs + within * self.options.global_batch_size

    def epoch(self, step: int) -> int:
        """Passes over its prompts that an iteration has done before a step."""
        return step % self.steps_per_iteration * self.options.global_batch_size // self.rows

    def acting_version(self, step: int) -> int:
        """Of the weights that act in a step: after how many steps the policy had them."""
        began = step - step % self.steps_per_iteration
        return began if self.options.acting_policy == "reference" else step


@dataclass(frozen=True)
class Ranked:
    """Scored answers, and the pair that was chosen of each prompt's.

    Attributes:
        rollouts: All answers, one prompt's next to each other.
        judged: What the judge says of each.
        pairs: One for each prompt.
    """

    rollouts: Rollouts
    judged: Sequence[Judged[float]]
    pairs: Sequence[Pair]

    @property
    def group(self) -> int:
        """Answers to each prompt."""
        return len(self.judged) // len(self.pairs)

    def batch(self) -> Batch:
        """The chosen and the rejected answer of each pair to learn from, next to each other, with their scores.

        What is learned is the policy itself, however its answers were drawn: at temperature 1, over all tokens.
        """
        rows = [
            prompt * self.group + place
            for prompt, pair in enumerate(self.pairs)
            if pair.status == "ok" and pair.chosen is not None and pair.rejected is not None
            for place in (pair.chosen, pair.rejected)
        ]
        return replace(self.rollouts.batch.select(rows), sampling=None, group_size=2)


def self_rewarding_step(step: int, position: int, workers: SelfRewardingWorkers, rules: Rules) -> StepResult:
    """One optimizer step: answer, judge, choose, learn; at the end of an iteration the policy becomes the reference."""
    options, iteration = rules.options, step // rules.steps_per_iteration
    with workers.experience.engine.at(rules.acting_version(step)) as refitted:
        with workers.phase("generate"):  # y₁ … y_N ~ π_ref(· | x)
            rollouts = workers.experience.collect(
                position, options.global_batch_size, rules.sampling, options.num_responses_to_gen
            )
        with workers.phase("judge"):  # s_n = mean of k verdicts of π_ref on (x, y_n)
            judged = workers.judge(_cases(rollouts, step))
    ranked = _ranked(rollouts, judged, options.length_control_of(iteration), options.num_responses_to_gen)
    metrics = refitted + judge_metrics(judged).prefixed("judge")
    leaks = leak_test(options.leak_pattern, workers.judge.parser)
    metrics += (answer_metrics(ranked.rollouts, judged, leaks) + pair_metrics(ranked.pairs)).prefixed("train")
    metrics += _learned(ranked.batch(), workers, rules, iteration)
    metrics += Metrics({"train/iteration": Last(float(iteration)), "train/epoch": Last(float(rules.epoch(step)))})
    if (step + 1) % rules.steps_per_iteration == 0:
        with workers.phase("reference"):
            hand_over(workers.policy, workers.reference)  # π_ref ← π
            workers.policy.reset_optimizer()
    return StepResult(
        metrics, rules.position(step + 1), rollouts.batch.tokens.numel(), _sample_rows(ranked, rules.num_logged_samples)
    )


def _cases(rollouts: Rollouts, step: int) -> list[Case]:
    """What the judge is shown: the conversation, and each answer as text."""
    numbered = enumerate(zip(rollouts.prompts, rollouts.responses, strict=True))
    return [
        response_case(
            prompt.messages or ({"role": "user", "content": prompt.text.strip()},), response, (step, prompt.id, number)
        )
        for number, (prompt, response) in numbered
    ]


def _ranked(rollouts: Rollouts, judged: Sequence[Judged[float]], length_control: float, group: int) -> Ranked:
    sequences = zip(rollouts.batch.sequences(), rollouts.batch.sequences("mask"), strict=True)
    tokens = [tuple(sequence[mask].tolist()) for sequence, mask in sequences]
    cut = rollouts.batch["truncated"].tolist()
    answers = [
        Answer(own, not unfinished, mean_score(one), score_variance(one) if len(one.values) > 1 else None)
        for own, unfinished, one in zip(tokens, cut, judged, strict=True)
    ]
    pairs = [choose(answers[start : start + group], length_control) for start in range(0, len(answers), group)]
    score_B = torch.tensor([float("nan") if answer.score is None else answer.score for answer in answers])
    batch = rollouts.batch.with_columns(sample={"score": score_B})
    return Ranked(Rollouts(batch, rollouts.prompts, rollouts.responses), judged, pairs)


def _learned(batch: Batch, workers: SelfRewardingWorkers, rules: Rules, iteration: int) -> Metrics:
    """One optimizer step on the pairs; none where there are no pairs."""
    if not len(batch):
        return Metrics({"train/updates_skipped": Sum(1.0)})
    with workers.phase("logprobs"):
        batch = batch.with_columns({"ref_logprob": workers.reference.logprobs(batch)})  # log π_ref(y | x)
    loss = preference_loss(rules.options, rules.options.beta_of(iteration))
    with workers.phase("policy"):
        return train(workers.policy, batch, loss).prefixed("train")


def _sample_rows(ranked: Ranked, count: int) -> list[dict[str, Any]]:
    """The first prompts with the pair that was chosen, plain enough for JSON."""
    return [_sample_row(ranked, prompt, pair) for prompt, pair in enumerate(ranked.pairs[:count])]


def _sample_row(ranked: Ranked, prompt: int, pair: Pair) -> dict[str, Any]:
    first = prompt * ranked.group
    scores: Tensor = ranked.rollouts.batch["score"][first : first + ranked.group]
    asked = ranked.rollouts.prompts[first]
    row = {"id": asked.id, "prompt": asked.text, "status": pair.status, "scores": scores.tolist()}
    for name, place in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if place is not None:
            replies = [one.answer.text for one in ranked.judged[first + place].judgements if one.answer is not None]
            row |= {name: ranked.rollouts.responses[first + place], f"{name}_score": float(scores[place])}
            row |= {f"{name}_judgements": replies}
    return row
