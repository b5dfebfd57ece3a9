"""Online DPO (Guo et al. 2024, Algorithm 1): DPO on pairs sampled in the same step.

Several answers to each prompt are sampled from the current policy and scored; the best and the
worst form a pair. A prompt whose answers have equal scores gives no pair and is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.learn_pairs import build_preference_loss, list_answers, select_pairs
from lockstep.algorithms.online_dpo.options import OnlineDPORecipe
from lockstep.algorithms.opening import (
    ComparedSampler,
    describe,
    measure_run_length,
    open_sampling,
    with_reference,
)
from lockstep.algorithms.setup import Setup
from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics, Sum
from lockstep.learners.base import Learner, train
from lockstep.losses.preference import Preference
from lockstep.objectives.pairing import PairCandidate, PairStatus, choose_pair
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True)
class OnlineDPOStep:
    """One iteration: sample answers, pair the best with the worst, and update the policy.

    Attributes:
        sample: Samples from the policy π, and compares learner and sampler.
        reference: The frozen π_ref.
    """

    sample: ComparedSampler
    reference: Learner
    run_length: RunLength
    loss: Preference
    num_logged_samples: int

    def __call__(self, step: int, position: int) -> StepResult:
        count = self.run_length.count_rows(position)
        rollouts, answers, compared = self.sample(step, position, count)  # y_1 … y_G ~ π(·|x)
        metrics = rollouts.metrics().with_prefix("train") + rollouts.rewards() + compared
        pairs, counts = pair_answers(answers, self.sample.num_generations)  # y_w ≻ y_l
        if len(pairs):
            with self.sample.phase("reference"):
                pairs = with_reference(pairs, self.reference)  # log π_ref(y | x)
            with self.sample.phase("policy"):
                learned = train(self.sample.policy, pairs, self.loss)
        else:
            learned = Metrics(updates_skipped=Sum(1.0))
        metrics += counts.with_prefix("train") + learned.with_prefix("policy")
        samples = sample_rows(rollouts, answers, self.sample.collector, self.num_logged_samples)
        return StepResult(metrics, position + count, answers.tokens.numel(), samples)


def pair_answers(answers: Batch, generations: int) -> tuple[Batch, Metrics]:
    """Pairs the best with the worst answer to each prompt; skips answers without a verdict.

    Returns:
        The pairs, the better answer first. Metrics: the share of prompts with a pair, and the
        shares without one because of equal scores, too few verdicts, or identical answers.
    """
    candidates: list[PairCandidate] = []
    for tokens, score in zip(list_answers(answers), answers["score"].tolist(), strict=True):
        candidates.append(PairCandidate(tokens, True, score if score == score else None))
    groups: list[list[PairCandidate]] = []
    for first in range(0, len(candidates), generations):
        groups.append(candidates[first : first + generations])
    pairs = [choose_pair(group, 0.0) for group in groups]
    counts = Counter(pair.status for pair in pairs)
    statuses: tuple[PairStatus, ...] = ("ok", "tie", "unscored", "identical")
    metrics = Metrics({status: Mean(counts[status], len(pairs)) for status in statuses})
    return select_pairs(answers, pairs, generations), metrics


def open_online_dpo(recipe: OnlineDPORecipe, setup: Setup) -> Job:
    """Opens the policy, the reference, the sampler, the prompts and the reward."""
    options = recipe.online_dpo
    size = options.num_prompts_per_step
    policy = setup.learner(recipe.policy_role)
    reference = setup.learner(recipe.frozen_reference)
    parts = open_sampling(recipe, setup, policy, setup.sampler(policy))
    run_length = measure_run_length(recipe, len(parts.rows), size, trains_rest=True)
    sampling = setup.source.sampling(recipe.sampling)
    sample = ComparedSampler(
        policy, parts.collector, parts.agreement, sampling, options.num_generations, setup.phase
    )
    loss = build_preference_loss(options, options.ref_policy_kl_penalty)
    return Job(
        step=OnlineDPOStep(sample, reference, run_length, loss, recipe.run.num_logged_samples),
        run_length=run_length,
        state={"policy": policy},
        validate=parts.validate,
        data=describe(parts.rows, "prompts"),
        held_out=None if parts.held_out is None else describe(parts.held_out, "prompts"),
        agreement=parts.agreement,
    )
