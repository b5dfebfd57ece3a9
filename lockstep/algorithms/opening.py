"""The parts that the jobs of several algorithms share: prompts, rewards, agreement, validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.job import RunLength, StepEvent, Validate, Validation
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.setup import Setup
from lockstep.config import Common, RepeatedSampling
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.pairs import Pairs
from lockstep.data.prompts import Prompts
from lockstep.environments.options import EnvironmentSection
from lockstep.learners.base import Learner, compute_logprobs
from lockstep.monitor.agreement import Agreement, Promise
from lockstep.monitor.doctor_command import doctor_options
from lockstep.monitor.sequential import DriftTest
from lockstep.monitor.watch import FLOOR, Watch
from lockstep.rewards.base import Reward
from lockstep.rewards.options import RewardSection
from lockstep.rewards.reward_model import RewardModelScorer
from lockstep.rewards.row_rules import rule_of
from lockstep.rollouts.evaluation import grading, sample_answers
from lockstep.rollouts.rollout import RolloutCollector
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.samplers.base import Sampler
from lockstep.system.command_line import command
from lockstep.weight_sync.sync import random_probe


def describe(rows: Prompts | Demonstrations | Pairs, what: str) -> str:
    """Describes how many rows there are, and which were skipped."""
    named = what.removesuffix("s") if len(rows) == 1 else what
    return f"{len(rows)} {named} ({rows.selection.account})"


def describe_updates(updates: int) -> str:
    """Describes how many optimizer steps a step of the algorithm makes."""
    return "1 optimizer step" if updates == 1 else f"{updates} optimizer steps"


def validate_figures(measure: Callable[[int], Metrics] | None, version: Callable[[int], int] = int) -> Validate | None:
    """Wraps a measurement as a validation without samples; None stays None.

    Args:
        measure: Measures the weights of a version.
        version: The version after a number of steps.
    """
    return None if measure is None else lambda step: Validation(measure(version(step)))


def measure_run_length(recipe: Common, rows: int, rows_per_step: int, trains_rest: bool = False) -> RunLength:
    """The length of a run: `max_steps` steps, or else `max_epochs` passes over the data.

    Args:
        recipe: Has the section `run`.
        rows: Rows of one pass over the data.
        rows_per_step: Rows that a step takes.
        trains_rest: True if the last step may be smaller: it takes `RunLength.count_rows`. Else the run says how many
            rows are left out.

    Raises:
        InputError: There are not enough rows for one step.
    """
    if recipe.run.max_steps >= 0:
        return RunLength(recipe.run.max_steps, None, rows_per_step, trains_rest, rows)
    limit = recipe.run.max_epochs * rows
    if limit < rows_per_step:
        raise InputError(
            f"{limit} rows are fewer than the {rows_per_step} of one step; lower the batch or raise run.max_epochs"
        )
    steps = -(-limit // rows_per_step) if trains_rest else limit // rows_per_step
    return RunLength(steps, limit, rows_per_step, trains_rest, rows)


def build_engine(setup: Setup, learner: Learner, sampler: Sampler) -> SamplerSession:
    """Opens a sampler session that syncs a learner's weights and verifies that they arrived."""
    probe = random_probe(setup.source.vocabulary, setup.source.context, setup.dtype)
    return SamplerSession(sampler, learner, probe, setup.phase)


def build_agreement(
    algorithm: Algorithm, setup: Setup, learner: Learner, engine: SamplerSession, cure: str = ""
) -> Agreement:
    """Builds the comparison of learner and sampler; `cure` tells the user what to do about drift, in its alarm."""
    inference = algorithm.inference
    assert inference is not None, "what samples is compared"
    section, options = inference.agreement, doctor_options(algorithm.learner, inference.sampler, inference.sampling)
    examine = f"{command('doctor', 'quick', setup.source.folder)} {options}"
    bound = section.bound(algorithm.learner.dtype)
    is_exact = setup.inexact is None
    promise = Promise(bound, section.stops, examine, is_exact, section.requires_exact, setup.inexact)
    watch = None
    if section.drift is not None and not is_exact:  # to the bit, any difference is drift
        test = DriftTest(section.drift.false_alarm_rate, section.drift.baseline_steps, section.drift.factor, FLOOR)
        watch = Watch(learner, engine, test, setup.note, cure)
    return Agreement(learner, engine, promise, watch, setup.note)


def open_training(recipe: Common, setup: Setup, reward: RewardSection | None) -> Prompts:
    """Opens the training prompts; the reward scores their answers, so it defines what a row needs."""
    return open_prompts(setup.files.train, recipe.data, setup.source.tokenizer, rule_of(reward))


def open_reward(
    setup: Setup, role: ModelRole | None, section: RewardSection | None, rows: Prompts, option: str
) -> Reward | RewardModelScorer:
    """Opens the reward of responses: the reward model, where there is a role for one, else the section's reward."""
    return setup.reward(section, rows, option) if role is None else RewardModelScorer(setup.learner(role))


def open_held_out(recipe: Common, setup: Setup, reward: RewardSection | None, judge: bool = False) -> Prompts | None:
    """Opens held-out prompts.

    Args:
        recipe: Its limits apply.
        setup: Has the files.
        reward: Scores the answers, so it defines what a row needs.
        judge: True if a judge scores the rows that say `judge`.

    Returns:
        None where nothing is held out.
    """
    files = setup.files.validation
    if files is None:
        return None
    return open_prompts(files, recipe.data, setup.source.tokenizer, rule_of(reward, judge))


def measure_answers(
    recipe: Common,
    setup: Setup,
    prompts: Prompts | None,
    collector: RolloutCollector,
    asked: RepeatedSampling | None,
    reward: RewardSection | None,
    environment: EnvironmentSection | None = None,
    own: RewardSection | None = None,
) -> Callable[[int], Metrics] | None:
    """Builds a validation that samples answers to held-out prompts with the weights of a version, and grades them.

    Args:
        recipe: Limits the number of prompts.
        setup: Has the model.
        prompts: Held-out prompts; None: nothing is held out.
        collector: Samples with the current policy, and scores.
        asked: Number of answers to each prompt, and their distribution.
        reward: Scores them; None: a reward model or an environment does.
        environment: Answers the policy, where it tells which answers pass.
        own: The section `validation_reward`, which scores them in place of `reward`; None: the collector scores.
    """
    if prompts is None or asked is None:
        return None
    if own is not None:
        collector = replace(collector, reward=setup.reward(own, prompts, "validation_reward"))
    rows = prompts.first(recipe.data.max_validation_samples)
    graded, sampling = grading(own or reward, environment), setup.source.sampling(asked)
    graded.require_passes(asked, "validation_sampling")

    def validate(version: int) -> Metrics:
        with collector.engine.at(version):
            samples, judging = sample_answers(collector, rows, 0, sampling, asked.num_samples)
        return (graded.metrics(samples, asked.ks) + judging).with_prefix("validation")

    return validate


REWARD_CUT_OFF = "reward.cut_off to a number (or to as_is: they are scored as now, without this note)"
"""The option to set if a recipe's own `reward` scores."""


class CutOffNote:
    """Notes, once, that nothing declares what a response is worth that a limit cuts off, although rewards are negative.

    Args:
        note: Shows a line that stays.
        cure: The option to set.
    """

    def __init__(self, note: Callable[[str], None], cure: str) -> None:
        self._note, self._cure = note, cure
        self._lowest, self._is_noted = 0.0, False

    def __call__(self, event: StepEvent) -> None:
        values = event.values
        self._lowest = min(self._lowest, values.get("train/reward_min", 0.0))
        paid = values.get("train/reward_cut_off")
        if self._is_noted or paid is None or self._lowest >= 0 or "train/cut_off_as_is" in values:
            return
        self._is_noted = True
        self._note(
            f"step {event.step}: rewards can be negative ({self._lowest:g}), and {values['train/truncated']:.0%} of "
            f"responses were cut off and scored as they are, {paid:.3g} on average, where all earn "
            f"{values['train/reward']:.3g}; so that being cut off does not pay, set {self._cure}"
        )


def with_reference(batch: Batch, reference: Learner) -> Batch:
    """Adds the column `ref_logprob`, log-probabilities under the frozen reference policy."""
    return batch.with_columns({"ref_logprob": compute_logprobs(reference, batch, "the reference policy")})
