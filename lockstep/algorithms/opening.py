"""Setup shared by several algorithms: prompts, rewards, agreement, validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.job import RunLength, Validation, ValidationFunction
from lockstep.algorithms.rewarded import RewardedRecipe
from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.setup import Setup
from lockstep.config import Common, RepeatedSampling
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.core.types import PhaseTimer, SamplingParams
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.pairs import PairRows
from lockstep.data.prompts import PromptRows
from lockstep.environments.options import EnvironmentSection
from lockstep.learners.base import Learner, compute_logprobs
from lockstep.monitor.agreement import Agreement, AgreementPromise
from lockstep.monitor.doctor_command import doctor_options
from lockstep.monitor.sequential import DriftTest
from lockstep.monitor.watch import FLOOR, DriftWatch
from lockstep.rewards.options import RewardSection
from lockstep.rewards.reward_model import RewardModelScorer
from lockstep.rewards.row_rules import build_row_rule
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.rollouts.evaluation import grading, sample_answers
from lockstep.rollouts.rollout import RolloutCollector, Rollouts
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.base import Sampler
from lockstep.system.command_line import format_command
from lockstep.weight_sync.sync import random_probe


def describe(rows: PromptRows | DemonstrationRows | PairRows, plural: str) -> str:
    """Describes the number of rows and of skipped rows; `plural` is the noun for rows."""
    noun = plural.removesuffix("s") if len(rows) == 1 else plural
    return f"{len(rows)} {noun} ({rows.selection.skipped_summary})"


def validate_figures(measure: Callable[[int], Metrics] | None) -> ValidationFunction | None:
    """Converts a measurement to a validation without samples; None stays None."""
    if measure is None:
        return None
    return lambda step: Validation(measure(step))


def measure_run_length(
    recipe: Common, rows: int, rows_per_step: int, trains_rest: bool = False
) -> RunLength:
    """Computes the length of a run: `max_steps` steps, else `max_epochs` passes over the data.

    Args:
        recipe: Recipe with the section `run`.
        rows: Number of rows in one pass over the data.
        rows_per_step: Number of rows per step.
        trains_rest: True if the last step may be smaller: it takes `RunLength.count_rows`. Else the
            run reports the number of skipped rows.

    Raises:
        InputError: Not enough rows for one step.
    """
    if recipe.run.max_steps >= 0:
        return RunLength(recipe.run.max_steps, None, rows_per_step, trains_rest)
    limit = recipe.run.max_epochs * rows
    if limit < rows_per_step:
        raise InputError(
            f"{limit} rows are fewer than the {rows_per_step} rows of a step; lower "
            "num_prompts_per_step or global_batch_size, or raise run.max_epochs"
        )
    steps = -(-limit // rows_per_step) if trains_rest else limit // rows_per_step
    return RunLength(steps, limit, rows_per_step, trains_rest)


def build_engine(setup: Setup, learner: Learner, sampler: Sampler) -> SamplerSession:
    """Opens a sampler session that syncs a learner's weights and verifies that they arrived."""
    probe = random_probe(setup.source.vocabulary, setup.source.context, setup.dtype)
    return SamplerSession(sampler, learner, probe, setup.phase)


def build_agreement(
    algorithm: Algorithm, setup: Setup, learner: Learner, engine: SamplerSession, cure: str = ""
) -> Agreement:
    """Builds the comparison of learner and sampler; `cure` is advice for the drift alarm."""
    inference = algorithm.inference
    assert inference is not None, "a sampling run has a comparison"
    section = inference.agreement
    options = doctor_options(algorithm.learner, inference.sampler, inference.sampling)
    examine = f"{format_command('doctor', 'quick', setup.source.folder)} {options}"
    bound = section.choose_bound(algorithm.learner.dtype)
    is_exact = setup.inexact is None
    promise = AgreementPromise(
        bound, section.stops_run, examine, is_exact, section.requires_exact, setup.inexact
    )
    watch = None
    if section.drift is not None and not is_exact:  # if exact, any difference is drift
        test = DriftTest(
            section.drift.false_alarm_rate,
            section.drift.baseline_steps,
            section.drift.factor,
            FLOOR,
        )
        watch = DriftWatch(learner, engine, test, setup.show_note, cure)
    return Agreement(learner, engine, promise, watch, setup.show_note)


def open_training(recipe: Common, setup: Setup, reward: RewardSection | None) -> PromptRows:
    """Opens the training prompts; the reward defines the required fields of a row."""
    return open_prompts(
        setup.files.train, recipe.data, setup.source.tokenizer, build_row_rule(reward)
    )


def open_held_out(recipe: Common, setup: Setup, reward: RewardSection | None) -> PromptRows | None:
    """Opens held-out prompts.

    Args:
        recipe: Recipe with limits on lengths.
        setup: Setup with the files.
        reward: The reward of answers, which defines the required fields of a row.

    Returns:
        None if no prompts are held out.
    """
    files = setup.files.validation
    if files is None:
        return None
    return open_prompts(files, recipe.data, setup.source.tokenizer, build_row_rule(reward))


def measure_answers(
    recipe: Common,
    setup: Setup,
    prompts: PromptRows | None,
    collector: RolloutCollector,
    asked: RepeatedSampling | None,
    reward: RewardSection | None,
    environment: EnvironmentSection | None = None,
    own: RewardSection | None = None,
) -> ValidationFunction | None:
    """Builds a validation that samples answers to held-out prompts and grades them.

    It logs the answers to the first prompts, the same ones each time.

    Args:
        recipe: Recipe with the number of prompts and of logged samples.
        setup: Setup with the model.
        prompts: Held-out prompts; None: no validation.
        collector: Samples with the current policy, and scores.
        asked: Number of answers per prompt, and their sampling distribution.
        reward: The reward; None: a reward model or an environment scores answers.
        environment: The environment's section, if its rewards define which answers pass.
        own: The section `validation_reward`, which replaces `reward`; None: the collector scores.
    """
    if prompts is None or asked is None:
        return None
    if own is not None:
        collector = replace(collector, reward=setup.reward(own, prompts, "validation_reward"))
    rows = prompts.read_first(recipe.data.max_validation_samples)
    graded = grading(own or reward, environment)
    sampling = setup.source.sampling(asked)
    graded.require_passes(asked, "validation_sampling")

    def validate_answers(version: int) -> Validation:
        with collector.engine.at(version):
            samples, judging = sample_answers(collector, rows, 0, sampling, asked.num_samples)
        metrics = graded.compute_metrics(samples, asked.ks) + judging
        logged = [sample.to_row() for sample in samples[: recipe.run.num_logged_samples]]
        return Validation(metrics.with_prefix("validation"), logged)

    return validate_answers


@dataclass(frozen=True)
class SampledAnswers:
    """An algorithm's data, sampling, rewards and validation.

    Attributes:
        rows: The training prompts.
        held_out: The held-out prompts; None: no validation.
        collector: Samples with the current policy, and scores.
        agreement: Compares learner and sampler.
        validate: Validates the weights of a version; None: no validation.
    """

    rows: PromptRows
    held_out: PromptRows | None
    collector: RolloutCollector
    agreement: Agreement
    validate: ValidationFunction | None


def open_sampling(
    recipe: RewardedRecipe,
    setup: Setup,
    policy: Learner,
    sampler: Sampler,
    *,
    cure: str = "",
    episodes: EpisodeRunner | AgentRunner | None = None,
    grades: EnvironmentSection | None = None,
    best_reward: float | None = None,
) -> SampledAnswers:
    """Opens prompts, rewards, sampling and validation.

    Args:
        recipe: The recipe.
        setup: The run's setup.
        policy: The learner that samples.
        sampler: Its inference engine.
        cure: Advice for the drift alarm.
        episodes: The environment; None: single-turn.
        grades: The environment's section, if its rewards define which answers pass.
        best_reward: The mean reward of the best policy, if known.
    """
    engine = build_engine(setup, policy, sampler)
    own = recipe.validation_reward
    held_out = setup.try_build(lambda: open_held_out(recipe, setup, own or recipe.reward), None)
    rows = open_training(recipe, setup, recipe.reward)
    role = recipe.reward_role
    if role is None:
        reward = setup.reward(recipe.reward, rows, "reward")
    else:
        reward = RewardModelScorer(setup.learner(role))
    collector = RolloutCollector(
        engine, rows, reward, setup.source.decode, recipe.seed, episodes, best_reward
    )
    agreement = build_agreement(recipe, setup, policy, engine, cure)
    validate = measure_answers(
        recipe,
        setup,
        held_out,
        collector,
        recipe.validation_sampling,
        recipe.reward,
        grades,
        own,
    )
    return SampledAnswers(rows, held_out, collector, agreement, validate)


@dataclass(frozen=True)
class ComparedSampler:
    """Samples responses with the policy's current weights, and compares learner and sampler.

    Attributes:
        policy: The policy π.
        collector: Samples and scores.
        agreement: Compares learner and sampler.
        sampling: The sampling distribution.
        num_generations: Number of responses per prompt.
        phase: Times the phases.
    """

    policy: Learner
    collector: RolloutCollector
    agreement: Agreement
    sampling: SamplingParams
    num_generations: int
    phase: PhaseTimer

    def __call__(self, step: int, position: int, count: int) -> tuple[Rollouts, Batch, Metrics]:
        """Returns a step's rollouts, their batch with `old_logprob`, and metrics."""
        with self.phase("generate"), self.collector.engine.at(step) as sync_metrics:
            rollouts = self.collector.collect(position, count, self.sampling, self.num_generations)
        with self.phase("logprobs"):
            old_logprob_N = compute_logprobs(self.policy, rollouts.batch, "the policy")
        batch = rollouts.batch.with_columns({"old_logprob": old_logprob_N})
        with self.phase("watch"):
            return rollouts, batch, sync_metrics + self.agreement.compare(step + 1, step, batch)


def with_reference(batch: Batch, reference: Learner) -> Batch:
    """Adds the column `ref_logprob`, the log-probabilities of the frozen reference policy."""
    return batch.with_columns(
        {"ref_logprob": compute_logprobs(reference, batch, "the reference policy")}
    )
