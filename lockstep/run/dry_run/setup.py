"""The setup of a dry run: checks what can be checked, with stand-ins for models that compute nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar, assert_never

import torch
from torch import Tensor

from lockstep import machine_memory
from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.episodes import describe_rewards, episodes_of
from lockstep.algorithms.roles import ModelRole
from lockstep.algorithms.rows import DataFiles
from lockstep.algorithms.setup import Policy
from lockstep.batch import Batch
from lockstep.cluster.judges import policy_answers, read_people
from lockstep.config import DType
from lockstep.data.prompts import Prompts
from lockstep.data.ranked import describe
from lockstep.data.templates import read_field
from lockstep.environments.options import EnvironmentSection
from lockstep.errors import InputError
from lockstep.judge.asking import Answer, Answering, Conversation
from lockstep.judge.build import score_judge
from lockstep.judge.options import AskedSection
from lockstep.learners.base import Learner
from lockstep.losses.base import Loss
from lockstep.metrics import Metrics
from lockstep.models.source import ModelSource, open_source
from lockstep.rewards.base import NoReward, Reward
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import RewardJudge, RewardSection, SingleReward
from lockstep.rollouts.episodes import Episodes
from lockstep.run.dry_run.findings import Findings
from lockstep.run.live_setup import role_folder
from lockstep.samplers.base import Piece, Sampler
from lockstep.types import Prompt, Request, SamplingParams, skip_timing
from lockstep.units import readable
from lockstep.weight_sync.attestation import Attestation

_ANSWERS = 64  # right answers that are read; each is a question to math-verify


T = TypeVar("T")


@dataclass
class DrySetup:
    """Implements `lockstep.algorithms.setup.Setup` without computing anything.

    Attributes:
        algorithm: The algorithm to set up.
        folder: A temporary folder for what is made.
        files: The data.
        source: The initial model.
        inexact: Why a run would not compute by the kernels of `models.exact`; None: it would.
        found: Collects the report and the problems.
    """

    algorithm: Algorithm
    folder: Path
    files: DataFiles
    source: ModelSource
    inexact: str | None
    found: Findings

    @property
    def dtype(self) -> DType:
        return self.algorithm.learner.dtype

    def phase(self, name: str) -> AbstractContextManager[None]:
        return skip_timing(name)

    def beside(self, name: str) -> AbstractContextManager[None]:
        return skip_timing(name)

    def note(self, text: str) -> None:
        self.found.notes.append(text)

    def learner(self, role: ModelRole) -> Learner:
        with self.found.problem():
            folder = role_folder(role, self.source)
            if role.path is not None:
                self.found.say(role.name.replace("_", " "), f"{folder} reads the policy's tokens")
        return Absent()

    def for_part(self, files: DataFiles, learners: Mapping[ModelRole, Learner]) -> DrySetup:
        return replace(self, files=files)

    def sampler(self, learner: Learner) -> Sampler:
        return Absent()

    def sampler_beside(self) -> tuple[Sampler, Callable[[], None]]:
        absent = Absent()
        return absent, absent.abandon

    def reward(self, section: RewardSection | None, rows: Prompts, option: str) -> Reward:
        """Reports what is known of a reward before there is a response; an unusable one was reported before."""
        if section is not None:
            for key, leaf in section.leaves(option):
                with self.found.problem():
                    self._say_reward(leaf, rows, key)
        return NoReward()

    def episodes(self, section: EnvironmentSection | None, judge: str | None) -> Episodes | None:
        if section is None:
            return None
        with self.found.problem():
            episodes = episodes_of(section, self.algorithm.data, self.source, self.note)
            made = f"{section.class_name} can be made; it was not played with"
            worth = f"; {episodes.describe_cut_off()}" if judge is None and episodes is not None else ""
            self.found.say("environment", f"{made}; {describe_rewards(judge)}{worth}")
            return episodes
        return None

    def answering(self, section: AskedSection, policy: Policy, name: str) -> Answering:
        with self.found.problem():
            if section.is_policy:
                return policy_answers(section, policy, name)
            if section.path is not None:
                return policy_answers(section, Policy(Absent().generate, open_source(section.path)), name)
        return Silent()

    def attempt(self, build: Callable[[], T], otherwise: T) -> T:
        with self.found.problem():
            return build()
        return otherwise

    def hold(self, what: str, size: int, cure: str) -> None:
        total = machine_memory.total_bytes()
        self.found.say("memory", f"{what}: {readable(size)} of this machine's, once")
        if size > total:
            with self.found.problem():
                raise InputError(
                    f"{what}, and that takes {readable(size)} of memory, but this machine has {readable(total)}; {cure}"
                )

    def _say_reward(self, section: SingleReward, rows: Prompts, key: str) -> None:
        first, option = rows.first(_ANSWERS), key.replace("_", " ")
        match section.type:
            case "math":
                self._say_answers(MathReward(section.marker, key), first, rows, option)
            case "python":
                self.found.say(option, f"{section.function} is there and can be called; it was not called")
            case "code":
                assert section.code is not None, "the recipe has it"
                how = "a program was run in the sandbox" if section.code.url is None else "its server was not asked"
                self.found.say(option, f"code; {how}, and every row has tests")
            case "instructions":
                self.found.say(option, "instructions; those of every row can be checked")
            case "by_row":
                self._say_by_row(section, first, rows, key)
            case "server":
                assert section.server is not None, "the recipe names it"
                self.found.say(option, f"{section.server.url}; it was not asked")
            case "judge":
                assert section.judge is not None, "the recipe has one"
                self._say_judge(section.judge, f"{key}.judge")
            case "sum":
                raise AssertionError("its parts are said")
            case _:
                assert_never(section.type)

    def _say_judge(self, section: RewardJudge, key: str) -> None:
        located = section.locate(self.source.folder)
        score_judge(
            located, self.answering(located, Policy(Absent().generate, self.source), key), self.algorithm.seed, key
        )
        people = "" if section.people is None else f"; {describe(*read_people(section.people))}"
        who = (section.path or "the initial model") if located.has_engine else "a server"
        self.found.say(key, f"{who} judges {section.num_evals_to_average} times; it was not asked{people}")

    def _say_by_row(self, section: SingleReward, first: Sequence[Prompt], rows: Prompts, key: str) -> None:
        option = key.replace("_", " ")
        field = section.verifier or ""
        named = Counter(str(read_field(prompt.row, field)) for prompt in first)
        shares = ", ".join(f"{count} {name}" for name, count in named.items())
        self.found.say(option, f"by row; of the first {len(first)} rows: {shares}")
        math = [prompt for prompt in first if read_field(prompt.row, field) == "math"]
        if math:
            self._say_answers(MathReward(section.marker, key), math, rows, option)

    def _say_answers(self, reward: MathReward, first: Sequence[Prompt], rows: Prompts, option: str) -> None:
        answers = [rows.answer(prompt) for prompt in first]
        alone = [replace(prompt, text="") for prompt in first]  # a prompt may have opened a thought
        verdicts = reward(alone, answers, answers)
        wrong = next((prompt.id for prompt, verdict in zip(first, verdicts, strict=True) if verdict == 0.0), None)
        if wrong is not None:
            self.note(f"{wrong}: its right answer, given as a response, is worth 0; is {reward.option}.marker in it?")
        self.found.say(option, f"math; the right answers of the first {len(first)} rows can be read")


class Silent:
    """A stand-in for a judge whose model is not known; implements `Answering`."""

    def escape(self, text: str) -> str:
        return _refuse()

    def excesses(self, conversations: Sequence[Conversation]) -> list[int]:
        return _refuse()

    def answers(self, conversations: Sequence[Conversation], keys: Sequence[int]) -> list[Answer | None]:
        return _refuse()


class Absent:
    """A stand-in for a model: implements `Learner` and `Sampler`, and computes nothing."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def version(self) -> int | None:
        return None

    def logprobs(self, batch: Batch) -> Tensor:
        return _refuse()

    def topk(self, batch: Batch, k: int) -> tuple[Tensor, Tensor]:
        return _refuse()

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return _refuse()

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        return _refuse()

    def optim_step(self) -> Metrics:
        return _refuse()

    def reset_optimizer(self) -> None:
        _refuse()

    @property
    def sender(self) -> None:
        return _refuse()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return _refuse()

    def save(self, folder: Path) -> None:
        _refuse()

    def poll_save(self, wait: bool) -> bool:
        return _refuse()

    def load(self, folder: Path) -> None:
        _refuse()

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        return _refuse()

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return _refuse()

    def logprobs_of_each(self, batch: Batch) -> Sequence[Tensor]:
        return _refuse()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]:
        return _refuse()

    def wake(self) -> None:
        _refuse()

    def sleep(self) -> None:
        _refuse()

    def abandon(self) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise AssertionError("a dry run computes nothing; `Algorithm.open` may not ask a model yet")
