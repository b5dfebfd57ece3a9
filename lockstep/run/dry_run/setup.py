"""The setup of a dry run: checks that need no models, with stand-ins for models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.episodes import describe_rewards, start_episode_runner
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import DataFiles
from lockstep.algorithms.setup import PolicyJudge
from lockstep.cluster.judges import policy_answers
from lockstep.core.errors import InputError, LockstepError
from lockstep.data.prompts import PromptRows
from lockstep.data.templates import read_field
from lockstep.environments.options import EnvironmentSection
from lockstep.judge.asking import JudgeModel
from lockstep.judge.build import score_judge
from lockstep.judge.options import AskedSection
from lockstep.learners.base import Learner
from lockstep.models.source import ModelSource, open_source
from lockstep.report.progress import show_notes
from lockstep.report.terminal import summary_table
from lockstep.rewards.base import NoReward, Reward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import RewardSection, SingleReward
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episodes import EpisodeRunner
from lockstep.run.live_setup import LiveSetup, role_folder
from lockstep.samplers.base import Sampler

_ANSWERS = 64  # number of right answers to parse with math-verify


T = TypeVar("T")


class DryRunError(InputError):
    """Problems that would stop a run before its first step; one sentence per line."""


@dataclass
class DryRunFindings:
    """Findings collected during the checks.

    Attributes:
        problems: Problems that would stop the run, one sentence each.
        lines: Lines of the report, as (subject, text).
        notes: Remarks for the user.
    """

    problems: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def collect_problem(self) -> Iterator[None]:
        """Turns an error in the block into a problem, so that later checks still run."""
        try:
            yield
        except (LockstepError, OSError) as error:
            sentence = str(error)
            if sentence not in self.problems:
                self.problems.append(sentence)

    def add_line(self, about: str, text: str) -> None:
        """Adds a line to the report."""
        self.lines.append((about, text))

    def build_report(self) -> str:
        """The lines as a table, then the notes.

        Raises:
            DryRunError: There are problems.
        """
        if self.problems:
            raise DryRunError("\n".join(self.problems))
        return "\n".join([summary_table(self.lines), *(f"note: {note}" for note in self.notes)])


@dataclass
class DrySetup(LiveSetup):
    """A run's setup with stand-ins for everything that computes.

    Attributes:
        findings: Collects the report and the problems.
    """

    findings: DryRunFindings = field(default_factory=DryRunFindings)

    @classmethod
    def from_algorithm(
        cls,
        algorithm: Algorithm,
        folder: Path,
        files: DataFiles,
        source: ModelSource,
        inexact: str | None,
        findings: DryRunFindings,
    ) -> DrySetup:
        """The setup of an algorithm; its files go to `folder`, and its notes to `findings`."""
        return cls(
            algorithm, folder, files, source, inexact, show_notes(), ABSENT, findings=findings
        )

    def show_note(self, text: str) -> None:
        self.findings.notes.append(text)

    def learner(self, role: ModelRole) -> Learner:
        with self.findings.collect_problem():
            folder = role_folder(role, self.source)
            if role.path is not None:
                self.findings.add_line(
                    role.name.replace("_", " "), f"{folder} reads the policy's tokens"
                )
        return ABSENT

    def sampler(self, learner: Learner) -> Sampler:
        return ABSENT

    def concurrent_sampler(self) -> tuple[Sampler, Callable[[], None]]:
        return ABSENT, ABSENT.abandon

    def reward(self, section: RewardSection | None, rows: PromptRows, option: str) -> Reward:
        """Checks a reward without responses.

        `dry_run` has already reported a reward that cannot be built.
        """
        if section is not None:
            for key, leaf in section.leaf_sections(option):
                with self.findings.collect_problem():
                    self._check_reward(leaf, rows, key)
        return NoReward()

    def start_environment(
        self, section: EnvironmentSection | None, judge: str | None
    ) -> EpisodeRunner | AgentRunner | None:
        if section is None:
            return None
        with self.findings.collect_problem():
            episodes = start_episode_runner(
                section, self.algorithm.data, self.source, self.folder, self.show_note
            )
            if isinstance(episodes, AgentRunner):
                words = f"an agent at an endpoint on this machine; {judge} judges its answers"
            else:
                words = describe_rewards(judge)
                if judge is None and episodes is not None:
                    words += f"; {episodes.describe_cut_off()}"
            place = section.reference.partition(" ")[2]
            self.findings.add_line("environment", f"{place}; {words}")
            return episodes
        return None

    def open_judge(self, section: AskedSection, policy: PolicyJudge, name: str) -> JudgeModel:
        with self.findings.collect_problem():
            if section.is_policy:
                return policy_answers(section, policy, name)
            if section.path is not None:
                return policy_answers(
                    section, PolicyJudge(ABSENT.generate, open_source(section.path)), name
                )
        return ABSENT

    def try_build(self, build: Callable[[], T], otherwise: T) -> T:
        with self.findings.collect_problem():
            return build()
        return otherwise

    def _check_reward(self, section: SingleReward, rows: PromptRows, key: str) -> None:
        """Checks a judge, and parses the right answers of the first rows like a math verifier."""
        if section.judge is not None:
            option = f"{key}.judge"
            judge = section.judge.with_model_folder(self.source.folder)
            answering = self.open_judge(judge, PolicyJudge(ABSENT.generate, self.source), option)
            score_judge(judge, answering, self.algorithm.seed, option)
            name = "a server"
            if judge.has_engine:
                name = section.judge.path or "the initial model"
            self.findings.add_line(option, f"{name} judges {judge.num_evals_to_average} times")
        first = rows.read_first(_ANSWERS)
        field = section.verifier or ""
        if section.type == "by_row":
            first = [prompt for prompt in first if read_field(prompt.row, field) == "math"]
        if section.type in ("math", "by_row") and first:
            reward = MathReward(section.marker, key)
            answers = list(map(rows.answer, first))
            # the prompt may open a thought
            without_text = [replace(prompt, text="") for prompt in first]
            verdicts = reward(without_text, answers, answers)
            wrong = [
                prompt.id for prompt, verdict in zip(first, verdicts, strict=True) if verdict == 0.0
            ]
            if wrong:
                self.show_note(
                    f"{wrong[0]}: its correct answer scores 0 as a response; does it contain "
                    f"{key}.marker?"
                )
        self.findings.add_line(key.replace("_", " "), section.type)


class StandIn:
    """A stand-in for a model or a judge, for all protocols; it computes nothing."""

    dtype = torch.float32
    version = None

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return _refuse_computation


def _refuse_computation(*values: object) -> NoReturn:
    raise AssertionError("a dry run computes nothing; `Algorithm.open` must not call a model")


ABSENT: Any = StandIn()
"""The stand-in for every model and judge."""
