"""The memory and traffic of a run on paper: every rank of every model, and those that share a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lockstep.algorithms.base import Algorithm, Load, ModelRole
from lockstep.cluster.placement import Placement, stays_awake, takes_turns
from lockstep.config import LearnerSection
from lockstep.config.model_recipe import weights_of
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.memory import FP32, Generation, Rank
from lockstep.plan.sizes import Sizes
from lockstep.plan.traffic import Flow, flows, sync_flows
from lockstep.samplers.cache_budget import CacheBudget

_SAVED = 3 * FP32  # weights and moments


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimate of a run's memory and traffic.

    Attributes:
        learner: The planned learner section; models with a layout of their own have it in their rank.
        load: Its largest step.
        ranks: One rank of each learner, by name, the policy first.
        sampler: The inference engine, if the run samples.
        placement: Where ranks and engines live.
        sequences: Sequences that an engine generates side by side.
        copies: Bytes of host memory for weights of a sampler one step ahead, the old ones and the new.
        in_turns: True if learners leave a GPU while its engine works, which sleeps while they do.
        awake: Names of learners that work while engines do.
    """

    learner: LearnerSection
    load: Load
    ranks: Mapping[str, Rank]
    sampler: Generation | None
    placement: Placement
    sequences: int = 0
    copies: int = 0
    in_turns: bool = False
    awake: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        recipe: Algorithm,
        sizes: Sizes,
        placement: Placement,
        learners: Mapping[str, LearnerSection] | None = None,
        sequences: int | None = None,
        memory: int | None = None,
    ) -> MemoryEstimate:
        """Estimates a recipe.

        Args:
            recipe: The recipe.
            sizes: Sizes of its model.
            placement: Where its processes live.
            learners: Its learners by the key of their layout, where these are others than the recipe's.
            sequences: Sequences that an engine generates side by side, where these are others than the recipe's.
            memory: Bytes of a device, which bound a cache whose size is not set; None: it has no bound.
        """
        learners, load, inference = learners or {}, recipe.largest_step, recipe.inference
        ranks = {
            role.name: _rank(role, sizes, learners.get(role.learner.layout_key, role.learner), load)
            for role in recipe.models
        }
        learner = learners.get(recipe.learner.layout_key, recipe.learner)
        awake = frozenset(role.name for role in recipe.models if stays_awake(role))
        alone = cls(learner, load, ranks, None, placement, in_turns=takes_turns(recipe, placement), awake=awake)
        if inference is None:
            return alone
        sequences, ahead = sequences or inference.sampler.max_batch_size, inference.one_step_ahead
        sampler = Generation.of(sizes, learner, inference.sampler, load, sequences, shares=not ahead)
        if memory is not None:
            sampler = sampler.limit(memory, alone.beside_engine)
        copies = 2 * FP32 * sizes.policy if ahead else 0
        return replace(alone, sampler=sampler, sequences=sequences, copies=copies)

    @property
    def own_layouts(self) -> dict[str, Rank]:
        """Ranks of models with a layout of their own."""
        return {name: rank for name, rank in self.ranks.items() if rank.learner.layout_key != self.learner.layout_key}

    @property
    def device(self) -> int:
        """Bytes on the fullest GPU: one rank of each learner, and an engine's part, where they share it.

        One process reuses memory for the next model; processes of their own each keep what they had at their peak,
        unless they take turns.
        """
        if self.sampler is None:
            return self._learners
        if self.placement.processes.apart:
            return max(self._learners, self.sampler.size)
        if self.in_turns:
            asleep = 0 if self.sampler.stays else self.sampler.weights
            return max(self._learners + asleep, self.beside_engine + max(self.sampler.size, self._syncing))
        if self.learner.parallel.ranks > 1 or self.sampler.stays:
            return self._learners + self.sampler.size
        return self._resident + self.sampler.weights + max(self._passing, self.sampler.cache)

    @property
    def beside_engine(self) -> int:
        """Bytes of learners on the device of an engine."""
        if self.placement.processes.apart:
            return 0
        if not self.in_turns:
            return self._learners
        policy = next(iter(self.ranks.values()))
        shared = policy.held if self.sampler is not None and not self.sampler.weights else 0
        return shared + sum(self.ranks[name].peak.size for name in self.awake)

    @property
    def offloaded(self) -> int:
        """Bytes of a GPU that are in the host's memory while its engine works."""
        leaving = sum(rank.resident for name, rank in self.ranks.items() if name not in self.awake)
        policy = next(iter(self.ranks.values()))
        stays = policy.held if self.sampler is None or not self.sampler.weights else 0
        return leaving - stays if self.in_turns else 0

    @property
    def budget(self) -> CacheBudget | None:
        """The room of an engine's cache on its device; None: its size is set, or it grows as needed."""
        return None if self.sampler is None else self.sampler.budget(self.beside_engine)

    @property
    def machine(self) -> int:
        """Bytes of all processes, if they share one memory."""
        ranks, width = self.learner.parallel.ranks, self.placement.processes.width
        engines = max(self.placement.processes.engines, 1) * width
        sampler = 0 if self.sampler is None else engines * self.sampler.size
        if ranks > 1:
            return ranks * sum(rank.peak.size + rank.on_host for rank in self.ranks.values()) + sampler + self.copies
        if self.sampler is not None and engines == 1 and not self.sampler.stays:
            return self.device + self.copies
        return self._learners + sampler + self.copies

    @property
    def _learners(self) -> int:
        """Bytes of all learners on a device."""
        if self.learner.parallel.ranks > 1 and not self.in_turns:
            return sum(rank.peak.size for rank in self.ranks.values())
        return self._resident + self._passing

    @property
    def _syncing(self) -> int:
        """Bytes of an engine that takes weights: a tensor at a time is gathered beside them."""
        assert self.sampler is not None, "weights are synced to an engine"
        return self.sampler.weights and self.sampler.weights + 2 * FP32 * self.ranks["policy"].sizes.table

    @property
    def _resident(self) -> int:
        return sum(rank.resident for rank in self.ranks.values())

    @property
    def _passing(self) -> int:
        return max(rank.peak.size - rank.resident for rank in self.ranks.values())

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
