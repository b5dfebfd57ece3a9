"""The setup of a real run, with learners, samplers, judges and rewards that compute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.episodes import describe_rewards, start_episode_runner
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import DataFiles
from lockstep.algorithms.setup import PolicyJudge
from lockstep.cluster.judges import judge_answers, open_judge_reward, policy_answers
from lockstep.cluster.learner_group import MeshLearner
from lockstep.cluster.open_models import open_learner, share_weights
from lockstep.cluster.placement import plan_placement, takes_turns, works_in_engines_turn
from lockstep.cluster.sampler_pool import open_nearest_sampler, start_sampler_pool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.turns import DeviceTurns
from lockstep.cluster.workers import WorkerPool
from lockstep.config import DType, ModelFolder
from lockstep.config.user_code import find_own_file
from lockstep.core.types import SamplingParams
from lockstep.data.prompts import PromptRows
from lockstep.environments.options import EnvironmentSection
from lockstep.judge.asking import JudgeModel
from lockstep.judge.options import AskedSection
from lockstep.learners.backend import find_backend as find_training_backend
from lockstep.learners.base import Learner
from lockstep.models.device import resolve_device
from lockstep.models.exact.layouts import explain_inexact_layout
from lockstep.models.folder import build_skeleton, read_config, require_classifier
from lockstep.models.heads import scores_sequences
from lockstep.models.open_kernels import explain_unshared
from lockstep.models.source import ModelSource, own_folder, reward_folder
from lockstep.plan.estimate import MemoryEstimate
from lockstep.plan.sizes import ModelSizes
from lockstep.report.progress import RunProgress
from lockstep.rewards.base import Reward
from lockstep.rewards.build import build_reward
from lockstep.rewards.options import RewardJudge, RewardSection
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.samplers.backend import find_backend
from lockstep.samplers.base import Sampler

T = TypeVar("T")


@dataclass
class LiveSetup:
    """Implements `lockstep.algorithms.setup.Setup` for a run.

    Attributes:
        algorithm: The algorithm to set up.
        folder: Folder of the run.
        files: Its data.
        source: Its initial model.
        inexact: Why the policy does not use the kernels of `models.exact`; None if it does.
        progress: Reports to the user.
        workers: Owner of the run's processes.
        turns: Turn-taking of learners and engines on shared GPUs.
    """

    algorithm: Algorithm
    folder: Path
    files: DataFiles
    source: ModelSource
    inexact: str | None
    progress: RunProgress
    workers: WorkerPool
    turns: DeviceTurns = field(default_factory=DeviceTurns)
    # one engine serves the weights of all learners
    _separate_sampler: Sampler | None = field(default=None, init=False)
    _trained: list[tuple[ModelRole, Learner]] = field(default_factory=list, init=False)

    @property
    def dtype(self) -> DType:
        return self.algorithm.learner.dtype

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self.progress.phase(name)

    def background_phase(self, name: str) -> AbstractContextManager[None]:
        return self.progress.background_phase(name)

    def show_note(self, text: str) -> None:
        self.progress.show_remark(text)

    def learner(self, role: ModelRole) -> Learner:
        """Builds a learner: in this process if it has one rank and no cluster, else in new ones."""
        folder = role_folder(role, self.source)
        code = find_own_file(type(self.algorithm))
        section = role.learner
        if (
            self.inexact is None
            and role.path is None
            and not explain_inexact_layout(read_config(folder), section.parallel)
        ):
            section = section.compute_exactly()
        spec = LearnerSpec(folder, role.head, section, role.optimizer, self.algorithm.seed, code)
        spec = spec if role.is_saved else spec.frozen
        sampling = self_checked_sampling(self.algorithm, self.source)
        cluster = self.algorithm.cluster
        turns = self._device_turns
        learner = open_learner(
            spec, sampling, cluster.timeout_s, self.progress, self.workers, turns
        )
        if isinstance(learner, MeshLearner) and not learner.one_machine:
            learner.require_shared(self.folder)
        if turns is not None and not works_in_engines_turn(role):
            turns.add_learner(learner)
        if role.optimizer is not None:
            self._trained.append((role, learner))
        return learner

    def plan_updates(self, steps: int) -> None:
        """Gives each learner the number of its optimizer steps in a run of `steps` steps."""
        for role, learner in self._trained:
            trained = max(0, steps - role.idle_steps)
            learner.plan_updates(trained * self.algorithm.largest_step.updates)

    def sampler(self, learner: Learner) -> Sampler:
        """A sampler; shares the weights of a learner without adapters in the same process."""
        shared = share_weights(learner, self.algorithm.learner, self._sampler_spec, self.workers)
        if shared is not None:
            if self._device_turns is None:
                return shared
            return self._device_turns.wrap_sampler(shared, learner)
        if self._separate_sampler is None:
            start = partial(open_nearest_sampler, self._sampler_spec, self.progress, self.workers)
            if self._device_turns is None:
                self._separate_sampler = start()
            else:
                self._separate_sampler = self._device_turns.start_engine(start)
        return self._separate_sampler

    def concurrent_sampler(self) -> tuple[Sampler, Callable[[], None]]:
        pool = start_sampler_pool(self._sampler_spec, self.progress, self.workers)
        return pool, pool.end_workers

    def reward(self, section: RewardSection | None, rows: PromptRows, option: str) -> Reward:
        return build_reward(section, self.show_note, self._judge_reward, option)

    def _judge_reward(self, section: RewardJudge, key: str) -> Reward:
        located = section.with_model_folder(self.source.folder)
        return open_judge_reward(
            located, key, self.folder, self.algorithm.seed, self._judge_answers
        )

    def start_environment(
        self, section: EnvironmentSection | None, judge: str | None
    ) -> EpisodeRunner | AgentRunner | None:
        if section is not None and judge is not None and not section.is_agent:
            self.show_note(f"{section.reference}: {describe_rewards(judge)}")
        return start_episode_runner(
            section, self.algorithm.data, self.source, self.folder, self.show_note
        )

    def open_judge(self, section: AskedSection, policy: PolicyJudge, name: str) -> JudgeModel:
        if section.is_policy:
            return policy_answers(section, policy, name)
        return self._judge_answers(section, name)

    def _judge_answers(self, section: AskedSection, name: str) -> JudgeModel:
        return judge_answers(
            section, self.algorithm.learner, self.progress, self.workers, name, self._device_turns
        )

    def try_build(self, build: Callable[[], T], otherwise: T) -> T:
        return build()

    @property
    def _sampler_spec(self) -> SamplerSpec:
        inference = self.algorithm.inference
        assert inference is not None, (
            "an algorithm that asks for a sampler declares its inference engine"
        )
        learner = self.algorithm.learner
        if self._device_turns is None:
            section = inference.sampler
        else:
            section = inference.sampler.take_turns(gets_weights=True)
        budget = None  # on a CPU, or without a plan
        if learner.may_use_gpu and find_training_backend(learner).is_planned:
            network = build_skeleton(read_config(self.source.folder), self.source.folder)
            sizes = ModelSizes.from_model(network, learner.lora)
            placement = plan_placement(self.algorithm)
            budget = MemoryEstimate.from_recipe(self.algorithm, sizes, placement).cache_budget
        if self.inexact is None:
            learner = learner.compute_exactly()
        return SamplerSpec(self.source.folder, section, learner, budget=budget)

    @property
    def _device_turns(self) -> DeviceTurns | None:
        """Turn-taking of learners and engines if they share GPUs."""
        if takes_turns(self.algorithm, plan_placement(self.algorithm)):
            return self.turns
        return None


def role_folder(role: ModelRole, source: ModelSource) -> str:
    """The folder of a model's initial weights.

    Raises:
        InputError: The model's tokenizer differs from the run's initial model's, it is an
            unfinished run, or it must score sequences and does not.
    """
    if role.path is not None:
        section = ModelFolder(path=role.path)
        if scores_sequences(role.head):
            return reward_folder(section, source)
        return own_folder(section, source)
    if scores_sequences(role.head):
        require_classifier(source.folder)
    return source.folder


def require_lengths(algorithm: Algorithm, source: ModelSource) -> None:
    """Raises InputError if an algorithm's sequences can be longer than the model's context."""
    source.require_room(algorithm.lengths)


def describe_step(algorithm: Algorithm, source: ModelSource, inexact: str | None) -> str:
    """Describes a step of a run; `inexact` is as in `decide_exact`."""
    learner = algorithm.learner
    unshared = explain_unshared(
        read_config(source.folder), learner, resolve_device(learner.device), inexact is None
    )
    return algorithm.largest_step.describe_step(learner, unshared)


def self_checked_sampling(algorithm: Algorithm, source: ModelSource) -> SamplingParams | None:
    """The distribution of a run's self-checked samplers; None without such samplers."""
    inference = algorithm.inference
    if inference is None:
        return None
    section = inference.sampling or inference.validation_sampling
    backend = find_backend(inference.sampler)
    if section is None or backend is None or not backend.is_self_checked:
        return None
    return source.sampling(section)
