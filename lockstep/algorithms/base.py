"""The declaration of an algorithm: its options, models, largest step and setup.

Imports no torch.

`Algorithm` is the only interface to the rest of the package: `train`, `--dry-run`, `plan`, export
and `config` read its declarations and contain no code for particular algorithms.
docs/guides/own_algorithm.md shows how to write one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lockstep.algorithms.roles import Inference, Load, ModelRole
from lockstep.config import Common, ModelFolder, registry
from lockstep.config.backends import INFERENCE
from lockstep.config.section import rule
from lockstep.judge.options import AskedSection
from lockstep.rewards.options import RewardSection

if TYPE_CHECKING:
    from lockstep.algorithms.job import Job
    from lockstep.algorithms.setup import Setup


class Algorithm(Common, ABC):
    """Base class of algorithms: a training recipe, and everything else the package needs.

    A subclass adds its sections as fields and defines the abstract members. Mark it `typing.final`
    so that a type checker reports missing members.
    """

    @rule
    def _what_is_required_is_exact(self) -> None:
        inference = self.inference
        if inference is not None and inference.agreement.requires_exact:
            reason = inference.explain_inexact(self.learner)
            if reason is not None:
                raise ValueError(
                    f"agreement.exact is require, but {reason}; set it to true, which falls back, "
                    "or false"
                )

    @rule
    def _the_engine_takes_weights_and_lengths(self) -> None:
        if self.inference is None:
            return
        sampler = self.inference.sampler
        reason = INFERENCE.find_backend(sampler.backend).explain_fixed_weights(sampler)
        if reason is not None:
            raise ValueError(f"{reason}; leave it out in training")
        for option, tokens in self.lengths.items():
            if sampler.context_limit is not None and tokens > sampler.context_limit:
                raise ValueError(
                    f"{option} is {tokens}, but the sampler's longest sequence is "
                    f"{sampler.context_limit} tokens"
                )

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if self.inference is None:
            idle["cluster.offload_idle"] = "if nothing is sampled"
        elif self.inference.one_step_ahead:
            idle["cluster.offload_idle"] = (
                "if engines sample one step ahead while the learner trains"
            )
        elif not self.learner.may_use_gpu:
            idle["cluster.offload_idle"] = "with learner.device: cpu"
        return idle

    @rule
    def _a_pass_has_room_for_its_rows(self) -> None:
        rows = self.learner.rows_per_pass
        room = self.learner.micro_batch_tokens
        longest = self.largest_step.tokens_per_group
        if rows is not None and rows > 1 and rows * longest > room:
            raise ValueError(
                f"learner.rows_per_pass is {rows}, up to {rows * longest} tokens, but "
                f"learner.micro_batch_tokens is {room}; lower the former or raise the latter"
            )

    @rule
    def _every_layout_has_all_ranks(self) -> None:
        ranks = self.learner.parallel.ranks
        for learner in (role.learner for role in self.own_layouts):
            if learner.parallel.ranks != ranks:
                raise ValueError(
                    f"{learner.layout_key} asks for {learner.parallel.ranks} ranks and "
                    f"{self.learner.layout_key} for {ranks}, but both share devices; make their "
                    "numbers of ranks equal"
                )

    @property
    @abstractmethod
    def models(self) -> tuple[ModelRole, ...]:
        """Every model of the run; the first one is exported at the end."""

    @property
    def own_layouts(self) -> tuple[ModelRole, ...]:
        """Models with their own option for the parallel layout instead of `learner.parallel`."""
        return tuple(
            role for role in self.models if role.learner.layout_key != self.learner.layout_key
        )

    @property
    def judges(self) -> Mapping[str, AskedSection]:
        """Judge models of rewards that need a separate inference engine, by section key."""
        judges: dict[str, AskedSection] = {}
        for name, section in self.rewards.items():
            if section is None:
                continue
            for key, leaf in section.leaf_sections(name):
                if leaf.judge is not None and leaf.judge.has_engine:
                    judges[f"{key}.judge"] = leaf.judge
        return judges

    @property
    @abstractmethod
    def largest_step(self) -> Load:
        """The largest workload of the learners."""

    @property
    @abstractmethod
    def lengths(self) -> Mapping[str, int]:
        """Maximum sequence lengths, tokens, by option; the model must support them."""

    def _answer_lengths(self, **limits: int | None) -> dict[str, int]:
        """Entries of `lengths` for prompt plus answer, by section; None: the section is not set."""
        prompt = self.data.max_prompt_tokens
        found: dict[str, int] = {}
        for section, limit in limits.items():
            if limit is not None:
                found[f"data.max_prompt_tokens + {section}.max_tokens"] = prompt + limit
        return found

    @abstractmethod
    def open(self, setup: Setup) -> Job:
        """Opens data and models, and returns the job.

        Raises all errors in the recipe.

        A dry run also calls it, with stand-ins for the models, so do not call a model here.
        """

    @property
    def inference(self) -> Inference | None:
        """The inference engine and its sampling distributions; None: no sampling."""
        return None

    @property
    def rewards(self) -> Mapping[str, RewardSection | None]:
        """Reward sections by option, so that a dry run can try each without a model."""
        return {}


class BuiltInAlgorithm(Algorithm, ABC):
    """A built-in recipe; the registry names the function that opens it."""

    def open(self, setup: Setup) -> Job:
        return registry.find_opener(type(self))(self, setup)

    @property
    def frozen_reference(self) -> ModelRole:
        """The reference policy π_ref: the initial model, which stays frozen."""
        return ModelRole("reference", "logits", self.learner)

    def _read_reward_model(self, section: ModelFolder | None) -> ModelRole | None:
        """The role of the reward model; None without one."""
        if section is None:
            return None
        return ModelRole("reward_model", "reward", self.learner, path=section.path)
