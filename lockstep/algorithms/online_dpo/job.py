"""Online DPO: Guo et al. 2024, Algorithm 1. The policy learns by DPO from pairs of its own answers of this very step.

Several answers to each prompt are sampled from the current policy and scored; the best and the worst are a pair. A
prompt whose answers are all worth the same gives none, and is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from lockstep.algorithms.job import Job, RunLength, StepResult
from lockstep.algorithms.learn_pairs import build_preference_loss
from lockstep.algorithms.online_dpo.options import OnlineDPORecipe, OnlineDPOSection
from lockstep.algorithms.opening import (
    REWARD_CUT_OFF,
    CutOffNote,
    build_agreement,
    build_engine,
    describe,
    measure_answers,
    measure_run_length,
    open_held_out,
    open_reward,
    open_training,
    validate_figures,
    with_reference,
)
from lockstep.algorithms.setup import Setup
from lockstep.core.batch import Batch
from lockstep.core.metrics import Mean, Metrics, Sum
from lockstep.core.types import Phase, SamplingParams
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.preference import Preference
from lockstep.monitor.agreement import Agreement
from lockstep.objectives.pairing import Candidate, choose
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.samples import sample_rows


@dataclass(frozen=True)
class OnlineDPOWorkers:
    """Models and data of a step: π, the frozen π_ref, the rollout collector, the comparison with the sampler."""

    policy: Learner
    reference: Learner
    collector: RolloutCollector
    agreement: Agreement
    phase: Phase


@dataclass(frozen=True)
class OnlineDPOSettings:
    """The options of the recipe, ready for use in the step."""

    options: OnlineDPOSection
    run_length: RunLength
    sampling: SamplingParams
    loss: Preference
    num_logged_samples: int


def online_dpo_step(step: int, position: int, workers: OnlineDPOWorkers, settings: OnlineDPOSettings) -> StepResult:
    """One iteration: sample answers, pair the best with the worst, and make one optimizer step on the pairs."""
    count, generations = settings.run_length.count_rows(position), settings.options.num_generations
    with workers.phase("generate"), workers.collector.engine.at(step) as refitted:
        rollouts = workers.collector.collect(position, count, settings.sampling, generations)  # y_1 … y_G ~ π(·|x)
    metrics = rollouts.metrics().with_prefix("train") + rollouts.rewards() + refitted
    with workers.phase("logprobs"):
        old_logprob_N = compute_logprobs(workers.policy, rollouts.batch, "the policy")
    answers = rollouts.batch.with_columns({"old_logprob": old_logprob_N})
    with workers.phase("watch"):
        metrics += workers.agreement.compare(step + 1, step, answers)
    pairs, counts = pair_answers(answers, generations)  # y_w ≻ y_l
    metrics += counts.with_prefix("train") + learn(pairs, workers, settings).with_prefix("policy")
    samples = sample_rows(rollouts, answers, workers.collector, settings.num_logged_samples)
    return StepResult(metrics, position + count, answers.tokens.numel(), samples)


def pair_answers(answers: Batch, generations: int) -> tuple[Batch | None, Metrics]:
    """Pairs the best with the worst answer to each prompt, by score; an answer without a verdict is left out.

    Returns:
        Pairs, the better answer first, under the policy's own distribution, however they were sampled; None: there are
        none. And the shares of prompts that gave a pair, and that did not: because of equal scores, too few verdicts,
        or equal answers.
    """
    scores, masks = answers["score"].tolist(), answers.sequences("mask")
    texts = [tuple(tokens[mask].tolist()) for tokens, mask in zip(answers.sequences(), masks, strict=True)]
    candidates = [
        Candidate(text, True, score if score == score else None)  # NaN: no verdict
        for text, score in zip(texts, scores, strict=True)
    ]
    counts, rows = Counter[str](), list[int]()
    for first in range(0, len(answers), generations):
        pair = choose(candidates[first : first + generations], 0.0)
        counts[pair.status] += 1
        if pair.chosen is not None and pair.rejected is not None:
            rows += [first + pair.chosen, first + pair.rejected]
    prompts = len(answers) // generations
    metrics = Metrics({status: Mean(counts[status], prompts) for status in ("ok", "tie", "unscored", "identical")})
    if not rows:
        return None, metrics
    chosen = answers.select(rows)
    columns = {"mask": chosen.mask}, {"score": chosen["score"]}
    return replace(chosen, token=columns[0], sample=columns[1], sampling=None, group_size=2), metrics


def learn(pairs: Batch | None, workers: OnlineDPOWorkers, settings: OnlineDPOSettings) -> Metrics:
    """Makes one optimizer step on pairs; without any, none."""
    if pairs is None:
        return Metrics(updates_skipped=Sum(1.0))
    with workers.phase("reference"):
        pairs = with_reference(pairs, workers.reference)  # log π_ref(y | x)
    with workers.phase("policy"):
        return train(workers.policy, pairs, settings.loss)


def open_online_dpo(recipe: OnlineDPORecipe, setup: Setup) -> Job:
    """Opens the policy, its reference and sampler, the prompts and their reward."""
    options = recipe.online_dpo
    size = options.num_prompts_per_step
    policy, reference = setup.learner(recipe.policy_role), setup.learner(recipe.frozen_reference)
    engine = build_engine(setup, policy, setup.sampler(policy))
    judge = recipe.validation_reward or recipe.reward
    held_out = setup.attempt(lambda: open_held_out(recipe, setup, judge), None)
    rows = open_training(recipe, setup, recipe.reward)
    reward = open_reward(setup, recipe.reward_role, recipe.reward, rows, "reward")
    collector = RolloutCollector(engine, rows, reward, setup.source.decode, recipe.seed)
    asked, own = recipe.validation_sampling, recipe.validation_reward
    measure = measure_answers(recipe, setup, held_out, collector, asked, recipe.reward, own=own)
    agreement = build_agreement(recipe, setup, policy, engine)
    run_length = measure_run_length(recipe, len(rows), size, trains_rest=True)
    settings = OnlineDPOSettings(
        options,
        run_length,
        setup.source.sampling(recipe.sampling),
        build_preference_loss(options, options.ref_policy_kl_penalty),
        recipe.run.num_logged_samples,
    )
    workers = OnlineDPOWorkers(policy, reference, collector, agreement, setup.phase)
    return Job(
        step=partial(online_dpo_step, workers=workers, settings=settings),
        run_length=run_length,
        state={"policy": policy},
        validate=validate_figures(measure),
        data=describe(rows, "prompts"),
        held_out=None if held_out is None else describe(held_out, "prompts"),
        arithmetic=(
            f"{size} prompts × {options.num_generations} = {options.responses} responses → at most {size} pairs → "
            "1 optimizer step"
        ),
        agreement=agreement,
        hooks=() if recipe.reward is None else (CutOffNote(setup.note, REWARD_CUT_OFF),),
    )
