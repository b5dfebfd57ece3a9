"""What a run takes on paper: everybody who holds a part of a model, and what of that shares a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import assert_never

from lockstep.algorithms.distill.options import DistillRecipe
from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.grpo.options import GRPORecipe
from lockstep.algorithms.ppo.options import PPORecipe
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.algorithms.sft.options import SFTRecipe
from lockstep.config import LearnerSection, TrainingRecipe, has_critic, is_one_step_ahead, sampling_recipe
from lockstep.config.model_recipe import weights_of
from lockstep.models.folder import read_config, skeleton
from lockstep.models.heads import Head
from lockstep.plan.memory import FP32, Generation, Rank
from lockstep.plan.sizes import Load, Sizes
from lockstep.plan.traffic import Flow, flows, refit

_SAVED = 3 * FP32  # weights and moments


@dataclass(frozen=True)
class Estimate:
    """Of a run.

    Attributes:
        learner: As it is planned for.
        load: What its largest step is.
        ranks: One rank of each learner, by name, the policy first.
        sampler: An engine, where something samples.
        sequences: It generates side by side.
        copies: Bytes of the host that hold the weights of a sampler one step ahead, the old ones and the new.
    """

    learner: LearnerSection
    load: Load
    ranks: Mapping[str, Rank]
    sampler: Generation | None
    sequences: int = 0
    copies: int = 0

    @classmethod
    def of(
        cls, recipe: TrainingRecipe, sizes: Sizes, learner: LearnerSection | None = None, sequences: int | None = None
    ) -> Estimate:
        """Of a recipe, as it says or with another learner, or so many sequences generated side by side."""
        learner, load = learner or recipe.learner, Load.of(recipe)
        ranks, sampled = _ranks(recipe, sizes, learner, load), sampling_recipe(recipe)
        if sampled is None:
            return cls(learner, load, ranks, None)
        sequences = sequences or sampled.sampler.max_batch_size
        ahead = is_one_step_ahead(recipe)
        sampler = Generation.of(sizes, learner, sampled.sampler, load, sequences, shares=not ahead)
        return cls(learner, load, ranks, sampler, sequences, 2 * FP32 * sizes.policy if ahead else 0)

    @property
    def device(self) -> int:
        """Bytes on the fullest GPU: one rank of each learner, and the sampler, which is on the first.

        One process uses memory again for what comes next; processes of their own each keep what they had at their peak.
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
        """Bytes of all processes, where all of them share one memory."""
        ranks, sampler = self.learner.parallel.ranks, 0 if self.sampler is None else self.sampler.size
        if ranks == 1:
            return self.device + self.copies
        return ranks * sum(rank.peak.size + rank.on_host for rank in self.ranks.values()) + sampler + self.copies

    @property
    def flows(self) -> list[tuple[str, Flow]]:
        """What a rank sends per step of the algorithm, by learner."""
        found = [(name, flow) for name, rank in self.ranks.items() for flow in flows(rank)]
        return found + [("policy", flow) for flow in (refit(self.ranks["policy"]) if self.sampler else [])]

    @property
    def sent(self) -> int:
        """Bytes that a rank sends per step."""
        return sum(flow.size for _, flow in self.flows)


def _ranks(recipe: TrainingRecipe, sizes: Sizes, learner: LearnerSection, load: Load) -> dict[str, Rank]:
    """One rank of each learner, by name."""
    match recipe:
        case RewardModelRecipe():
            return {"reward_model": Rank(sizes, learner, load, "reward")}
        case PPORecipe() | GRPORecipe() | SelfRewardingRecipe() | DistillRecipe() | SFTRecipe() | DPORecipe():
            ranks = {"policy": Rank(sizes, learner, load)}
        case _:
            assert_never(recipe)
    if has_critic(recipe):
        ranks["critic"] = Rank(sizes, learner, load, "value")
    reference = _reference(recipe, sizes)
    if reference is not None:
        ranks["reference"] = Rank(reference, learner, load, trained=False)
    for name, head, path in _asked(recipe):
        ranks[name] = Rank(_sizes(path), learner, load, head, trained=False)
    return ranks


def _reference(recipe: TrainingRecipe, sizes: Sizes) -> Sizes | None:
    """Of the reference; that of self-rewarding moves, and has the adapters that the policy has."""
    match recipe:
        case PPORecipe() | GRPORecipe():
            return replace(sizes, adapters=0) if recipe.options.has_reference else None
        case DPORecipe():
            return replace(sizes, adapters=0)
        case SelfRewardingRecipe():
            return sizes
        case SFTRecipe() | RewardModelRecipe() | DistillRecipe():
            return None
        case _:
            assert_never(recipe)


def _asked(recipe: TrainingRecipe) -> list[tuple[str, Head, str]]:
    """Other models that are asked and do not learn: who, what for, and where each is."""
    match recipe:
        case DistillRecipe():
            return [(f"teacher {name}", "logits", section.path) for name, section in recipe.teachers.items()]
        case PPORecipe() | GRPORecipe() | SelfRewardingRecipe():
            return [] if recipe.reward_model is None else [("reward_model", "reward", recipe.reward_model.path)]
        case SFTRecipe() | DPORecipe() | RewardModelRecipe():
            return []
        case _:
            assert_never(recipe)


@cache
def _sizes(path: str) -> Sizes:
    folder = str(weights_of(path))
    return Sizes.of(skeleton(read_config(folder, headless=True), folder))


def checkpoint_bytes(*parameters: int) -> int:
    """Of a checkpoint with models of so many parameters."""
    return sum(_SAVED * count for count in parameters)


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
