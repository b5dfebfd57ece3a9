"""An algorithm is a declaration: options, models, its largest step, and how it sets itself up. Imports no torch.

`Algorithm` is all that the rest of the house knows: `train`, `--dry-run`, `plan`, export and `config` read
what it declares, and never ask which algorithm it is. docs/guides/own_algorithm.md writes one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.config import (
    AgreementSection,
    Common,
    LearnerSection,
    Optimizer,
    RepeatedSampling,
    RewardSection,
    SamplerSection,
    Sampling,
)
from lockstep.types import Head

if TYPE_CHECKING:
    from lockstep.algorithms.job import Job
    from lockstep.algorithms.setup import Setup


@dataclass(frozen=True)
class ModelRole:
    """A model of an algorithm: whose weights it begins with, what it computes, whether it learns.

    Attributes:
        name: Of the role, such as policy or critic; checkpoints and plans call it so.
        head: What it computes for each token.
        learner: How it is laid out and computes.
        optimizer: How it learns; None: it is only asked.
        path: A folder of its own; None: it begins as the run's first model.
        follows: It is given a learner's weights as the run goes on, so it has the adapters that a learner has.
    """

    name: str
    head: Head
    learner: LearnerSection
    optimizer: Optimizer | None = None
    path: str | None = None
    follows: bool = False

    @property
    def is_saved(self) -> bool:
        """Whether a run changes its weights, so that checkpoints hold them."""
        return self.optimizer is not None or self.follows


@dataclass(frozen=True)
class Inference:
    """What an algorithm samples with.

    Attributes:
        sampler: The inference engine.
        agreement: How learner and sampler are compared.
        sampling: The distribution that is learned from; None: nothing sampled is.
        validation_sampling: The distribution that is validated with; None: nothing is.
        one_step_ahead: Whether the sampler works while the learner does.
    """

    sampler: SamplerSection
    agreement: AgreementSection
    sampling: Sampling | None
    validation_sampling: RepeatedSampling | None
    one_step_ahead: bool = False


@dataclass(frozen=True)
class Load:
    """What a learner is given, if every sequence is as long as it may be.

    Attributes:
        sequence: Tokens of the longest.
        group: Sequences that one pass must read together: 2, where rows are pairs.
        rows: Groups of an optimizer step.
        updates: Optimizer steps of a step of the algorithm.
        scored: Groups that a step of the algorithm scores before it learns, for each model that is asked.
        generated: Tokens of the longest that a sampler generates, its prompt with it; 0: nothing samples.
        full_support: Whether every token can be drawn; otherwise the logits exist whole.
    """

    sequence: int
    group: int
    rows: int
    updates: int = 1
    scored: int = 0
    generated: int = 0
    full_support: bool = True

    @property
    def shortest(self) -> int:
        """The fewest tokens that a pass can be given: one group."""
        return self.group * self.sequence

    def together(self, learner: LearnerSection) -> int:
        """Groups that one pass reads."""
        return max(1, learner.micro_batch_tokens // self.shortest)

    def tokens(self, learner: LearnerSection) -> int:
        """Of one pass, over all ranks that share it."""
        return min(self.together(learner), -(-self.rows // learner.parallel.row_shares)) * self.shortest

    def passes(self, learner: LearnerSection, groups: int) -> int:
        """That each rank makes over so many groups."""
        return math.ceil(math.ceil(groups / learner.parallel.row_shares) / self.together(learner))


class Algorithm(Common, ABC):
    """A recipe that trains, with all that the house has to know of its algorithm.

    A subclass adds its sections as fields, and declares what is abstract here. Mark it `typing.final`: a type checker
    then tells what it forgets.
    """

    @property
    @abstractmethod
    def models(self) -> tuple[ModelRole, ...]:
        """Every model of the run, first the one that the run is for, which is exported in the end."""

    @property
    @abstractmethod
    def largest_step(self) -> Load:
        """What the learners are given at most."""

    @property
    @abstractmethod
    def lengths(self) -> Mapping[str, int]:
        """The longest sequences that options allow, in tokens, by the options' names; the model must read them."""

    def _answer_lengths(self, **limits: int | None) -> dict[str, int]:
        """What `lengths` has of prompts with answers: of each section its `max_tokens`; None: it is off."""
        prompt = self.data.max_prompt_tokens
        return {
            f"data.max_prompt_tokens + {section}.max_tokens": prompt + limit
            for section, limit in limits.items()
            if limit is not None
        }

    @abstractmethod
    def open(self, setup: Setup) -> Job:
        """Opens data and models, and returns what is run. Whatever can be wrong with the recipe is raised here.

        A dry run calls it, too, with models that compute nothing, so nothing may be asked of them yet.
        """

    @property
    def inference(self) -> Inference | None:
        """What it samples with; None: nothing samples."""
        return None

    @property
    def rewards(self) -> tuple[RewardSection, ...]:
        """What scores responses, so that a dry run can try each before any model is known."""
        return ()
