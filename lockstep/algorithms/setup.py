"""The setup that a run provides to an algorithm: files, models, samplers, rewards, judges.

A real run implements it with real models (`lockstep.run.live_setup`), a dry run with stand-ins that
only check (`lockstep.run.dry_run.setup`), so that both use the same `Algorithm.open`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import DataFiles
from lockstep.config import DType
from lockstep.data.prompts import PromptRows
from lockstep.environments.options import EnvironmentSection
from lockstep.judge.asking import GenerateFunction, JudgeModel
from lockstep.judge.options import AskedSection
from lockstep.learners.base import Learner
from lockstep.models.source import ModelSource
from lockstep.rewards.base import Reward
from lockstep.rewards.options import RewardSection
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.samplers.base import Sampler

T = TypeVar("T")


@dataclass(frozen=True)
class PolicyJudge:
    """The policy in the role of a judge: its sampler, and the source of its model."""

    generate: GenerateFunction
    source: ModelSource


class Setup(Protocol):
    """Opens the models, samplers and judges of an algorithm, and closes them at the end of the
    run.
    """

    @property
    def folder(self) -> Path:
        """The run's folder."""
        ...

    @property
    def files(self) -> DataFiles:
        """The recipe's data."""
        ...

    @property
    def source(self) -> ModelSource:
        """The run's initial model."""
        ...

    @property
    def dtype(self) -> DType:
        """The dtype that learners and samplers compute in."""
        ...

    @property
    def inexact(self) -> str | None:
        """The reason for not using the kernels of `models.exact`; None: they are used."""
        ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Names and times a phase, the `with` block."""
        ...

    def background_phase(self, name: str) -> AbstractContextManager[None]:
        """Names and times a `with` block in another thread, concurrent with the phases."""
        ...

    def show_note(self, text: str) -> None:
        """Shows a line that the progress display does not overwrite."""
        ...

    def learner(self, role: ModelRole) -> Learner:
        """Opens a model, in this process or in separate ranks.

        Raises:
            InputError: Its tokenizer differs from the initial model's, its score head is missing,
                or the model cannot be found.
            ModelError: This machine does not compute it correctly.
        """
        ...

    def sampler(self, learner: Learner) -> Sampler:
        """Opens the inference engine, on the learner's modules if in one process."""
        ...

    def concurrent_sampler(self) -> tuple[Sampler, Callable[[], None]]:
        """Opens the inference engine in separate processes, concurrent with the learner.

        Returns:
            The engine, and a function that stops it immediately.
        """
        ...

    def reward(self, section: RewardSection | None, rows: PromptRows, option: str) -> Reward:
        """Builds the reward of responses to these rows; `option` is the section's key."""
        ...

    def start_environment(
        self, section: EnvironmentSection | None, judge: str | None
    ) -> EpisodeRunner | AgentRunner | None:
        """Starts the environment, if any; `judge` is the option that replaces its rewards."""
        ...

    def open_judge(self, section: AskedSection, policy: PolicyJudge, name: str) -> JudgeModel:
        """Opens a judge: the policy, another model or a server; `name` is the section's key."""
        ...

    def try_build(self, build: Callable[[], T], otherwise: T) -> T:
        """Returns `build()`; a dry run reports its failure and continues with `otherwise`."""
        ...
