"""The declaration of an algorithm: options, models, its largest step, and how it is set up.

Imports no torch.

`Algorithm` is all that the rest of the package knows: `train`, `--dry-run`, `plan`, export and
`config` read what it declares, and never ask which algorithm it is. docs/guides/own_algorithm.md
writes one.
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
    """A recipe that trains: the base class of algorithms, with all that the package has to know of
    them.

    A subclass adds its sections as fields, and defines what is abstract here. Mark it
    `typing.final`: a type checker then reports what is missing.
    """

    @rule
    def _what_is_required_is_exact(self) -> None:
        inference = self.inference
        if inference is not None and inference.agreement.requires_exact:
            reason = inference.explain_inexact(self.learner)
            if reason is not None:
                raise ValueError(
                    f"agreement.exact is require, but {reason}; say true, which falls back, or "
                    "false"
                )

    @rule
    def _the_engine_takes_weights_and_lengths(self) -> None:
        if self.inference is None:
            return
        sampler = self.inference.sampler
        reason = INFERENCE.find(sampler.backend).explain_fixed_weights(sampler)
        if reason is not None:
            raise ValueError(f"{reason}; leave it out in training")
        for option, tokens in self.lengths.items():
            if sampler.context_limit is not None and tokens > sampler.context_limit:
                raise ValueError(
                    f"{option} is {tokens}, but the sampler's longest sequence is set to "
                    f"{sampler.context_limit} tokens"
                )

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if self.inference is None:
            idle["cluster.offload_idle"] = "where nothing is sampled"
        elif self.inference.one_step_ahead:
            idle["cluster.offload_idle"] = (
                "where engines work one step ahead, at the same time as the learner"
            )
        elif not self.learner.may_use_gpu:
            idle["cluster.offload_idle"] = "with learner.device: cpu"
        return idle

    @rule
    def _a_pass_has_room_for_its_rows(self) -> None:
        rows = self.learner.rows_per_pass
        room = self.learner.micro_batch_tokens
        longest = self.largest_step.shortest
        if rows is not None and rows > 1 and rows * longest > room:
            raise ValueError(
                f"learner.rows_per_pass is {rows}, whose longest rows take {rows * longest} "
                "tokens, and "
                f"learner.micro_batch_tokens is {room}; lower the former or raise the latter"
            )

    @rule
    def _every_layout_has_all_ranks(self) -> None:
        there = self.learner.parallel.ranks
        for learner in (role.learner for role in self.own_layouts):
            if learner.parallel.ranks != there:
                raise ValueError(
                    f"{learner.layout_key} asks for {learner.parallel.ranks} ranks and "
                    f"{self.learner.layout_key} for "
                    f"{there}, and both share devices; make their products the same"
                )

    @property
    @abstractmethod
    def models(self) -> tuple[ModelRole, ...]:
        """Every model of the run; the first is the one that is exported in the end."""

    @property
    def own_layouts(self) -> tuple[ModelRole, ...]:
        """Models whose parallel layout has an option of its own instead of `learner.parallel`."""
        return tuple(
            role for role in self.models if role.learner.layout_key != self.learner.layout_key
        )

    @property
    def judges(self) -> Mapping[str, AskedSection]:
        """Judge models of rewards that need an inference engine of their own, by the key of their
        section.
        """
        sections = (
            (name, section) for name, section in self.rewards.items() if section is not None
        )
        leaves = (leaf for name, section in sections for leaf in section.leaves(name))
        return {
            f"{key}.judge": leaf.judge
            for key, leaf in leaves
            if leaf.judge is not None and leaf.judge.has_engine
        }

    @property
    @abstractmethod
    def largest_step(self) -> Load:
        """The largest workload of its learners."""

    @property
    @abstractmethod
    def lengths(self) -> Mapping[str, int]:
        """Longest sequences that options allow, in tokens, by the options' names; the model must
        have room for them.
        """

    def _answer_lengths(self, **limits: int | None) -> dict[str, int]:
        """Entries of `lengths` for prompt plus answer, from `max_tokens` of each section; None: the
        section is off.
        """
        prompt = self.data.max_prompt_tokens
        return {
            f"data.max_prompt_tokens + {section}.max_tokens": prompt + limit
            for section, limit in limits.items()
            if limit is not None
        }

    @abstractmethod
    def open(self, setup: Setup) -> Job:
        """Opens data and models, and returns the job.

        Everything that can be wrong with the recipe is raised here.

        A dry run calls it as well, with stand-ins for the models, so do not call a model here.
        """

    @property
    def inference(self) -> Inference | None:
        """The inference engine and its distributions; None: it samples nothing."""
        return None

    @property
    def rewards(self) -> Mapping[str, RewardSection | None]:
        """Rewards that score responses, by option, so that a dry run can try each before any model
        is known.
        """
        return {}


class BuiltInAlgorithm(Algorithm, ABC):
    """A recipe that ships: the registry names the function that opens it."""

    def open(self, setup: Setup) -> Job:
        return registry.find_opener(type(self))(self, setup)

    @property
    def frozen_reference(self) -> ModelRole:
        """The reference policy π_ref: the initial model, which no step changes."""
        return ModelRole("reference", "logits", self.learner)

    def _read_reward_model(self, section: ModelFolder | None) -> ModelRole | None:
        """The reward model, if one scores."""
        if section is None:
            return None
        return ModelRole("reward_model", "reward", self.learner, path=section.path)
