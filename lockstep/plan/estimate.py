"""The memory and traffic of a run on paper: every rank of every model, and those that share a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lockstep.algorithms.base import Algorithm, Load, ModelRole
from lockstep.config import LearnerSection
from lockstep.config.model_recipe import weights_of
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.memory import FP32, Generation, Rank
from lockstep.plan.sizes import Sizes
from lockstep.plan.traffic import Flow, flows, sync_flows

_SAVED = 3 * FP32  # weights and moments


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimate of a run's memory and traffic.

    Attributes:
        learner: The planned learner section.
        load: Its largest step.
        ranks: One rank of each learner, by name, the policy first.
        sampler: The inference engine, if the run samples.
        sequences: Sequences that it generates side by side.
        copies: Bytes of host memory for weights of a sampler one step ahead, the old ones and the new.
    """

    learner: LearnerSection
    load: Load
    ranks: Mapping[str, Rank]
    sampler: Generation | None
    sequences: int = 0
    copies: int = 0

    @classmethod
    def of(
        cls, recipe: Algorithm, sizes: Sizes, learner: LearnerSection | None = None, sequences: int | None = None
    ) -> MemoryEstimate:
        """Estimates a recipe as it is, or with another learner, or with `sequences` generated side by side."""
        learner, load, inference = learner or recipe.learner, recipe.largest_step, recipe.inference
        ranks = {role.name: _rank(role, sizes, learner, load) for role in recipe.models}
        if inference is None:
            return cls(learner, load, ranks, None)
        sequences, ahead = sequences or inference.sampler.max_batch_size, inference.one_step_ahead
        sampler = Generation.of(sizes, learner, inference.sampler, load, sequences, shares=not ahead)
        return cls(learner, load, ranks, sampler, sequences, 2 * FP32 * sizes.policy if ahead else 0)

    @property
    def device(self) -> int:
        """Bytes on the fullest GPU: one rank of each learner, and the sampler, which is on the first.

        One process reuses memory for the next model; processes of their own each keep what they had at their peak.
        """
        sampler = (0, 0) if self.sampler is None else (self.sampler.weights, self.sampler.cache)
        peaks = [rank.peak.size for rank in self.ranks.values()]
        if self.learner.parallel.ranks > 1:
            return sum(peaks) + sum(sampler)
        resident = [rank.resident for rank in self.ranks.values()]
        passing = max(peak - stays for peak, stays in zip(peaks, resident, strict=True))
        return sum(resident) + sampler[0] + max(passing, sampler[1])

    @property
    def machine(self) -> int:
        """Bytes of all processes, if they share one memory."""
        ranks, sampler = self.learner.parallel.ranks, 0 if self.sampler is None else self.sampler.size
        if ranks == 1:
            return self.device + self.copies
        return ranks * sum(rank.peak.size + rank.on_host for rank in self.ranks.values()) + sampler + self.copies

    @property
    def flows(self) -> list[tuple[str, Flow]]:
        """Collectives of a rank per step of the algorithm, by learner."""
        found = [(name, flow) for name, rank in self.ranks.items() for flow in flows(rank)]
        return found + [("policy", flow) for flow in (sync_flows(self.ranks["policy"]) if self.sampler else [])]

    @property
    def sent(self) -> int:
        """Bytes that a rank sends per step."""
        return sum(flow.size for _, flow in self.flows)


def _rank(role: ModelRole, sizes: Sizes, learner: LearnerSection, load: Load) -> Rank:
    """One rank of a model; a frozen model has no adapters."""
    own = sizes if role.path is None else replace(_sizes(role.path), adapters=sizes.adapters)
    own = own if role.is_saved else replace(own, adapters=0)
    return Rank(own, learner, load, role.head, trained=role.optimizer is not None)


@cache
def _sizes(path: str) -> Sizes:
    folder = str(weights_of(path))
    return Sizes.of(skeleton(read_config(folder, headless=True), folder))


def checkpoint_bytes(models: Sequence[ModelRole], sizes: Sizes) -> int:
    """Bytes of a checkpoint: weights of the models that change, and moments of those that learn."""
    return sum(
        (_SAVED if role.optimizer is not None else FP32) * sizes.count_trainable(role.head)
        for role in models
        if role.is_saved
    )
