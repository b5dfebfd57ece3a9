"""Recipes for workers: small values that any process can be sent and build the worker from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from torch import nn

from lockstep.learners.torch.learner import TorchLearner, resolve_device
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.recipe import Computation, LearnerSection, Optimizer, SamplerSection
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
    """A sampler with weights of its own, that computes as the learner does and where it does."""

    model: str
    section: SamplerSection
    learner: Computation

    def build(self) -> TorchSampler:
        lm = load_causal_lm(self.model)
        nn.Module.to(lm, resolve_device(self.learner.device))  # in place; its own `to` is typed for wrappers
        return TorchSampler(lm, self.section.max_batch_size, self.learner.dtype == "bf16")
