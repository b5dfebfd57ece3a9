"""Recipes for workers: small values that any process can be sent and build the worker from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from lockstep.learners.torch.learner import TorchLearner
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.recipe import LearnerSection, Optimizer, SamplerSection
from lockstep.samplers.torch.sampler import TorchSampler


@dataclass(frozen=True)
class LearnerSpec:
    """A learner: whose weights, which head, how it computes and learns (no optimizer: it only scores)."""

    model: str
    head: Literal["logits", "value"]
    section: LearnerSection
    optimizer: Optimizer | None
    seed: int

    def build(self, group: dist.ProcessGroup | None = None) -> TorchLearner:
        if self.head == "logits":
            return TorchLearner(LogitsHead(load_causal_lm(self.model)), self.section, self.optimizer, group)
        return TorchLearner(ValueHead(load_backbone(self.model), self.seed), self.section, self.optimizer, group)


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler with weights of its own."""

    model: str
    section: SamplerSection
    bf16: bool

    def build(self) -> TorchSampler:
        return TorchSampler(load_causal_lm(self.model), self.section.max_batch_size, self.bf16)
