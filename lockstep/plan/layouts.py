"""Search for a GPU layout that fits a run, and for recipe changes if none fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedConfig

from lockstep.algorithms.base import Algorithm
from lockstep.cluster.placement import DeviceGrid, ProcessCounts, RunPlacement
from lockstep.config import LearnerSection, Parallel
from lockstep.core.errors import InputError
from lockstep.models.parallelize import require_divisible
from lockstep.plan.estimate import MemoryEstimate
from lockstep.plan.sizes import ModelSizes

_WITHIN_A_MACHINE = 8
"""GPUs per machine, and the largest proposed tp.

Tensor-parallel ranks wait for each other four times per layer.
"""

_FEWEST_TOKENS = 256
"""Minimum tokens of a sequence per context-parallel rank; with fewer, it mostly waits."""


@dataclass(frozen=True)
class LayoutSearch:
    """Search over the layouts of a recipe.

    Attributes:
        recipe: The recipe.
        sizes: Sizes of its model.
        config: Configuration of its model.
        memory: Bytes of a GPU.
    """

    recipe: Algorithm
    sizes: ModelSizes
    config: PreTrainedConfig
    memory: int

    @property
    def own_processes(self) -> ProcessCounts:
        """The processes of the unchanged recipe."""
        if self.recipe.inference is None:
            sampler = None
        else:
            sampler = self.recipe.inference.sampler
        return ProcessCounts.from_sections(
            self.recipe.cluster, self.recipe.learner.parallel.ranks, sampler
        )

    def estimate_layout(
        self, parallel: Parallel, changes: Mapping[str, Any] | None = None
    ) -> MemoryEstimate | None:
        """The estimate of one layout; None if the recipe does not allow it.

        A recipe with one colocated engine gets as many engines as the learner's devices hold. A
        model with its own layout keeps it if it has the same number of ranks.

        Args:
            parallel: The layout.
            changes: Additional changes of the learner's options.
        """
        fields = self.recipe.learner.model_dump() | {
            "parallel": parallel.model_dump(),
            **(changes or {}),
        }
        own = self.own_processes
        spread = own.engines == 1 and not own.apart
        processes = replace(
            own,
            ranks=parallel.ranks,
            engines=max(parallel.ranks // own.width, 1) if spread else own.engines,
        )
        try:
            learner = LearnerSection.model_validate(fields)
            learners = {learner.layout_key: learner}
            for role in self.recipe.own_layouts:
                if role.learner.parallel.ranks == parallel.ranks:
                    layout = role.learner.parallel
                else:
                    layout = parallel
                learners[role.learner.layout_key] = learner.lay_out(layout, role.learner.layout_key)
            return self._estimate_processes(learners, processes)
        except (ValidationError, InputError):
            return None

    def estimate_unchanged(self) -> MemoryEstimate:
        """The estimate of the unchanged recipe.

        Raises:
            InputError: An engine would span two machines.
        """
        return self._estimate_processes({}, self.own_processes)

    def _estimate_processes(
        self, learners: Mapping[str, LearnerSection], processes: ProcessCounts
    ) -> MemoryEstimate:
        devices = DeviceGrid.from_similar_machines(
            min(max(processes.total_devices, 1), _WITHIN_A_MACHINE), processes
        )
        placement = RunPlacement.from_devices(devices, processes)
        return MemoryEstimate.from_recipe(self.recipe, self.sizes, placement, learners, self.memory)

    def list_layouts(self, gpus: int) -> list[Parallel]:
        """Layouts of this many GPUs with work for each rank, fewest tensor-parallel ranks first."""
        load = self.recipe.largest_step
        own = self.own_processes
        gpus -= own.engines * own.width if own.apart else 0
        layouts: list[Parallel] = []
        for tp in _list_divisors(gpus):
            if tp > _WITHIN_A_MACHINE or not self._divides_heads(tp):
                continue
            for cp in _list_divisors(gpus // tp):
                dp = gpus // tp // cp
                has_tokens = cp == 1 or load.sequence // cp >= _FEWEST_TOKENS
                if has_tokens and dp <= load.rows:
                    layouts.append(Parallel(dp=dp, tp=tp, cp=cp))
        return layouts

    def fits_device(self, estimate: MemoryEstimate) -> bool:
        """True if it fits on the fullest GPU."""
        return estimate.device_bytes + estimate.context_bytes <= self.memory

    def propose_layout(self, gpus: int) -> MemoryEstimate | None:
        """The fitting layout with the least traffic, after the cheapest change; None if nothing
        fits.

        `sync_every_pass` does not count as a change: every layout is also tried with it, since it
        takes less memory and more traffic.
        """
        for changes in self._list_changes():
            ways = changes, {**changes, "sync_every_pass": True}
            fitting: list[MemoryEstimate] = []
            for way, parallel in product(ways, self.list_layouts(gpus)):
                found = self.estimate_layout(parallel, way)
                if found is not None and self.fits_device(found):
                    fitting.append(found)
            if fitting:
                return min(fitting, key=rank_cuts)
        return None

    def _list_changes(self) -> Iterator[dict[str, Any]]:
        """Yields changes of the learner's options, cheapest first; each includes earlier ones."""
        yield {}
        again = {"activation_checkpointing": True}
        offload = {"cpu_offload": True}
        yield again
        yield again | offload
        tokens = self.recipe.learner.micro_batch_tokens // 2
        while tokens >= self.recipe.largest_step.tokens_per_group:
            yield again | {"micro_batch_tokens": tokens}
            yield again | offload | {"micro_batch_tokens": tokens}
            tokens //= 2

    def _divides_heads(self, tp: int) -> bool:
        try:
            require_divisible(self.config, tp)
        except InputError:
            return False
        return True


def rank_cuts(estimate: MemoryEstimate) -> tuple[bool, int, int]:
    """Sort key of a layout by its traffic: gradients per pass, then states per layer.

    Context parallelism has the most traffic for states.
    """
    layouts = [rank.learner.parallel for rank in estimate.ranks.values()]
    cuts = sum(each.tp * each.cp for each in layouts)
    return estimate.learner.sync_every_pass, cuts, sum(each.cp for each in layouts)


def list_overrides(recipe: Algorithm, estimate: MemoryEstimate) -> list[str]:
    """Overrides that turn the recipe's learner into the estimated one."""
    own = recipe.learner.model_dump()
    wanted = estimate.learner.model_dump()
    pairs = [(recipe.learner, estimate.learner)]
    pairs += [(role.learner, estimate.ranks[role.name].learner) for role in recipe.own_layouts]
    parallel: list[str] = []
    for given, planned in pairs:
        before = given.parallel.model_dump()
        for name, size in planned.parallel.model_dump().items():
            if before[name] != size:
                parallel.append(f"{given.layout_key}.{name}={size}")
    names = ("sync_every_pass", "activation_checkpointing", "cpu_offload", "micro_batch_tokens")
    changed = [
        f"learner.{name}={str(wanted[name]).lower()}" for name in names if own[name] != wanted[name]
    ]
    if estimate.placement.devices.machines > 1 and recipe.cluster.on_this_machine:
        changed += ["cluster=ray", "cluster.ray.address=auto"]
    if recipe.inference is None or estimate.sampler is None:
        return parallel + changed
    sampler = recipe.inference.sampler
    engines = estimate.placement.processes.engines
    if engines != sampler.engine_count:
        changed.append(f"sampler.replicas={engines}")
    return parallel + changed + cache_override(estimate)


def cache_override(estimate: MemoryEstimate) -> list[str]:
    """The override for the planned cache size of an engine, to three digits."""
    if estimate.sampler is None or not estimate.sampler.least:
        return []
    gib = estimate.sampler.cache / 2**30
    unit = 10.0 ** (math.floor(math.log10(gib)) - 2)
    return [f"sampler.kv_cache_gib={math.floor(gib / unit) * unit:.3g}"]


def _list_divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
