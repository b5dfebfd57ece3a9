"""Estimates the memory of a run: a rank of each model, an engine, and the fullest GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.roles import Load, ModelRole
from lockstep.cluster.placement import RunPlacement, takes_turns, works_in_engines_turn
from lockstep.config import LearnerSection
from lockstep.config.model_recipe import find_weights_folder
from lockstep.judge.options import AskedSection
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.memory import EngineMemory, ModelRank
from lockstep.plan.sizes import FP32, ModelSizes
from lockstep.samplers.backend import find_backend
from lockstep.samplers.cache_budget import PROCESS_BYTES, CacheBudget, usable_bytes
from lockstep.weight_sync.buckets import CAPACITY
from lockstep.weight_sync.carriers import BUFFERS


@dataclass(frozen=True)
class MemoryEstimate:
    """The estimate of a run's memory.

    Attributes:
        learner: The planned learner section; models with their own layout have it in their rank.
        load: Its largest step.
        ranks: One rank of each learner, by name, the policy first.
        sampler: The inference engine, if the run samples.
        placement: Placement of ranks and engines.
        buckets: Bytes that a GPU keeps for weight syncs; 0 if engines take no weights or share the
            policy's.
        sequences: Sequences that an engine generates concurrently.
        copies: Bytes of host memory for the old and new weights of a sampler one step ahead.
        takes_turns: Whether learners move to host memory while their GPU's engine works, and the
            engine sleeps otherwise.
        in_engines_turn: Names of learners that work while engines do.
        judges: Engines of judges, on the GPUs of the policy's engine.
    """

    learner: LearnerSection
    load: Load
    ranks: Mapping[str, ModelRank]
    sampler: EngineMemory | None
    placement: RunPlacement
    buckets: int = 0
    sequences: int = 0
    copies: int = 0
    takes_turns: bool = False
    in_engines_turn: frozenset[str] = frozenset()
    judges: tuple[EngineMemory, ...] = ()

    @classmethod
    def from_recipe(
        cls,
        recipe: Algorithm,
        sizes: ModelSizes,
        placement: RunPlacement,
        learners: Mapping[str, LearnerSection] | None = None,
        memory: int | None = None,
    ) -> MemoryEstimate:
        """Estimates a recipe.

        Args:
            recipe: The recipe.
            sizes: Sizes of its model.
            placement: Placement of its processes.
            learners: Its learners by the key of their layout, if they differ from the recipe's.
            memory: Bytes of a device, of which models may use `usable_bytes`; this limits a cache
                without a set size. None means no limit.
        """
        learners = learners or {}
        load = recipe.largest_step
        inference = recipe.inference
        ranks: dict[str, ModelRank] = {}
        for role in recipe.models:
            own = learners.get(role.learner.layout_key, role.learner)
            ranks[role.name] = _estimate_rank(role, sizes, own, load)
        learner = learners.get(recipe.learner.layout_key, recipe.learner)
        found = cls(
            learner,
            load,
            ranks,
            None,
            placement,
            takes_turns=takes_turns(recipe, placement),
            in_engines_turn=frozenset(
                role.name for role in recipe.models if works_in_engines_turn(role)
            ),
            judges=tuple(
                _estimate_judge(section, sizes, learner, load) for section in recipe.judges.values()
            ),
        )
        backend = None if inference is None else find_backend(inference.sampler)
        if inference is None or backend is None:
            return found
        sequences = inference.sampler.max_batch_size
        ahead = inference.one_step_ahead
        sampler = EngineMemory.from_sampler(
            sizes, learner, inference.sampler, load, sequences, not ahead, inference.has_penalties
        )
        found = replace(found, sampler=sampler, sequences=sequences)
        if sampler.weights:
            sent = backend.weight_dtype(learner).itemsize
            if placement.devices.on_gpu:
                buckets = BUFFERS * max(sent * sizes.largest, CAPACITY)
            else:
                buckets = 0
            found = replace(
                found, buckets=buckets, copies=2 * sent * sizes.policy_parameters if ahead else 0
            )
        if memory is None:
            return found
        return replace(
            found,
            sampler=sampler.limit_cache(
                usable_bytes(memory, found.process_count), found.beside_engine
            ),
        )

    @property
    def own_layouts(self) -> dict[str, ModelRank]:
        """Ranks of models with their own layout."""
        found: dict[str, ModelRank] = {}
        for name, rank in self.ranks.items():
            if rank.learner.layout_key != self.learner.layout_key:
                found[name] = rank
        return found

    @property
    def device_bytes(self) -> int:
        """Bytes on the fullest GPU: one rank of each learner, plus an engine if they share it.

        One process reuses memory for the next model; separate processes each keep their peak,
        unless they take turns.
        """
        if self.sampler is None:
            return self._learner_bytes
        if self.placement.processes.apart:
            return max(self._learner_bytes, self.beside_engine + self.sampler.total_bytes)
        if self.takes_turns:
            asleep = sum(
                engine.weights for engine in (self.sampler, *self.judges) if not engine.stays
            )
            return max(self._learner_bytes + asleep, self.beside_engine + self.sampler.total_bytes)
        if self.learner.parallel.ranks > 1 or self.sampler.stays:
            return self.beside_engine + self.sampler.total_bytes
        passing = max(self._passing_bytes, self.sampler.cache + self.sampler.seen)
        own = self._resident_bytes + self.buckets + self.sampler.weights
        return own + passing + self._judge_bytes

    @property
    def beside_engine(self) -> int:
        """Bytes on an engine's device in addition to the engine: learners, sync buckets, and
        judges.
        """
        if self.placement.processes.apart:
            return self.buckets + self._judge_bytes
        if not self.takes_turns:
            return self._learner_bytes + self._judge_bytes
        if self.sampler is not None and not self.sampler.weights:
            shared = self.ranks["policy"].held_bytes
        else:
            shared = 0
        return (
            shared
            + self.buckets
            + self._judge_bytes
            + sum(self.ranks[name].peak_moment.total_bytes for name in self.in_engines_turn)
        )

    @property
    def process_count(self) -> int:
        """Number of processes on the fullest GPU: a rank per model, and separate engines."""
        ranks = self.learner.parallel.ranks
        apart = ranks > 1 or self.copies > 0
        engines = [one for one in (self.sampler, *self.judges) if one is not None]
        own = sum(1 for one in engines if one.stays or (apart and one.weights))
        learners = len(self.ranks) if ranks > 1 else 1
        if self.placement.processes.apart:
            return max(learners, own)
        return learners + own

    @property
    def context_bytes(self) -> int:
        """Bytes of a GPU for the contexts of its processes, except the first one's."""
        return (self.process_count - 1) * PROCESS_BYTES

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of a GPU that move to host memory while its engine works."""
        if not self.takes_turns:
            return 0
        leaving = sum(
            rank.resident_bytes
            for name, rank in self.ranks.items()
            if name not in self.in_engines_turn
        )
        is_shared = self.sampler is not None and not self.sampler.weights
        return leaving - (
            self.ranks["policy"].held_bytes if is_shared and not self.learner.cpu_offload else 0
        )

    @property
    def cache_budget(self) -> CacheBudget | None:
        """Bounds of an engine's KV cache on its device; None if its size is set or it grows."""
        if self.sampler is None:
            found = None
        else:
            found = self.sampler.cache_budget(self.beside_engine)
        if found is None:
            return None
        return replace(found, processes=self.process_count)

    @property
    def machine_bytes(self) -> int:
        """Bytes of all processes, if they share one memory."""
        ranks = self.learner.parallel.ranks
        width = self.placement.processes.width
        engines = max(self.placement.processes.engines, 1) * width
        sampler = 0 if self.sampler is None else engines * self.sampler.total_bytes
        sampler += self._judge_bytes
        if ranks > 1:
            return (
                ranks
                * sum(rank.peak_moment.total_bytes + rank.on_host for rank in self.ranks.values())
                + sampler
                + self.copies
            )
        if self.sampler is not None and engines == 1 and not self.sampler.stays:
            return self.device_bytes + self.copies
        return self._learner_bytes + sampler + self.copies

    @property
    def _judge_bytes(self) -> int:
        return sum(judge.total_bytes for judge in self.judges)

    @property
    def _learner_bytes(self) -> int:
        """Bytes of all learners on a device."""
        if self.learner.parallel.ranks > 1 and not self.takes_turns:
            return sum(rank.peak_moment.total_bytes for rank in self.ranks.values()) + self.buckets
        return self._resident_bytes + self._passing_bytes + self.buckets

    @property
    def _resident_bytes(self) -> int:
        return sum(rank.resident_bytes for rank in self.ranks.values())

    @property
    def _passing_bytes(self) -> int:
        return max(
            rank.peak_moment.total_bytes - rank.resident_bytes for rank in self.ranks.values()
        )


def _estimate_rank(
    role: ModelRole, sizes: ModelSizes, learner: LearnerSection, load: Load
) -> ModelRank:
    """One rank of a model; a frozen model has no adapters."""
    if role.path is None:
        own = sizes
    else:
        own = replace(_read_sizes(role.path), adapters=sizes.adapters)
    own = own if role.is_saved else replace(own, adapters=0)
    return ModelRank(own, learner, load, role.head, role.optimizer is not None, _count_state(role))


def _count_state(role: ModelRole) -> int:
    """Numbers that the optimizer keeps for each trained weight."""
    if role.optimizer is None:
        return 0
    return len(role.optimizer.torch_class.state)


def _estimate_judge(
    section: AskedSection, own: ModelSizes, learner: LearnerSection, load: Load
) -> EngineMemory:
    """The engine of a judge; its model is the run's initial one unless the section names another.

    Each replica is on a separate device.
    """
    asked = replace(load, generated=section.max_prompt_tokens + section.sampling.max_tokens)
    sizes = own if section.path is None else _read_sizes(section.path, headless=False)
    engine = section.engine_section
    penalizes = section.sampling.params().penalizes
    return EngineMemory.from_sampler(
        sizes, learner, engine, asked, engine.max_batch_size, shares=False, penalizes=penalizes
    )


@cache
def _read_sizes(path: str, headless: bool = True) -> ModelSizes:
    folder = str(find_weights_folder(path))
    return ModelSizes.from_model(build_skeleton(read_config(folder, headless=headless), folder))


def checkpoint_bytes(models: Sequence[ModelRole], sizes: ModelSizes) -> int:
    """Bytes of a checkpoint: weights of saved models, and moments of trained models."""
    return sum(
        (1 + _count_state(role)) * FP32 * sizes.count_trainable(role.head)
        for role in models
        if role.is_saved
    )
