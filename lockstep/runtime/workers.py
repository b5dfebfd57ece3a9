"""Recipes for workers: small values that any process can be sent and build the worker from."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass, replace

import torch
from torch import nn

from lockstep.distributed.ranks import ALONE, Ranks
from lockstep.learners.rank import RankLearner, resolve_device
from lockstep.learners.torch.learner import TorchLearner
from lockstep.learners.torch.start import Head, started
from lockstep.models.folder import read_config
from lockstep.models.load import load_causal_lm
from lockstep.recipe import Computation, LearnerSection, Optimizer, SamplerSection
from lockstep.samplers.base import Served
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.samplers.vllm.sampler import VLLMSampler


@dataclass(frozen=True)
class LearnerSpec:
    """A learner: whose weights, which head, how it computes and learns (no optimizer: it only scores)."""

    model: str
    head: Head
    section: LearnerSection
    optimizer: Optimizer | None
    seed: int

    @property
    def frozen(self) -> LearnerSpec:
        """The same model to be scored with, as it is for good: without adapters, too."""
        return replace(self, optimizer=None, section=self.section.model_copy(update={"lora": None}))

    def build(self, ranks: Ranks = ALONE) -> RankLearner:
        if self.section.backend == "megatron":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Megatron tells of everything that it could use and does not find
                from lockstep.learners.megatron.start import started as stage_started

                return stage_started(self.model, self.head, self.seed, self.section, self.optimizer, ranks)
        device = resolve_device(self.section.device)
        model = started(self.model, self.head, self.seed, self.section, ranks, device)
        return TorchLearner(model, self.section, self.optimizer, ranks)


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler with weights of its own, that computes as the learner does and where it does."""

    model: str
    section: SamplerSection
    learner: Computation
    raw_logprobs: bool = False

    def build(self) -> Served:
        if self.section.backend == "vllm":
            return VLLMSampler(self.model, self.section, self.learner, self.raw_logprobs)
        return self.torch()

    def torch(self) -> TorchSampler:
        """A torch sampler, which can be used in this process, too."""
        lm = load_causal_lm(self.model)
        nn.Module.to(lm, resolve_device(self.learner.device))  # in place; its own `to` is typed for wrappers
        return TorchSampler(lm, self.section.max_batch_size, self.learner.dtype == "bf16", self.raw_logprobs)

    @property
    def context(self) -> int:
        """The longest sequence that the model reads."""
        return int(read_config(self.model).get_text_config().max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the sampler holds weights."""
        return torch.bfloat16 if (self.section.backend, self.learner.dtype) == ("vllm", "bf16") else torch.float32


def require_sampler(section: SamplerSection, computation: Computation) -> None:
    """Raises ValueError if a section asks for what is not there on this machine."""
    cuda = resolve_device(computation.device).type == "cuda"
    if section.backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "sampler.backend is vllm, which is not installed; docs/guides/generation.md says how, or use "
            "sampler.backend=torch"
        )
    if section.backend == "vllm" and cuda != torch.cuda.is_available():
        raise ValueError("vLLM takes the GPU where there is one; leave learner.device at auto, or use sampler=torch")
    if section.vllm.sleep and not cuda:
        raise ValueError("sampler.vllm.sleep frees memory of a GPU, and torch sees none here; leave it out")
    if cuda and section.replicas > 1:
        raise ValueError(
            f"sampler.replicas is {section.replicas}, but samplers cannot be spread over GPUs yet; use "
            "sampler.replicas=1, or learner.device=cpu"
        )
    if cuda and section.transfer == "process_group":
        raise ValueError("sampler.transfer=process_group is by gloo, for CPUs; leave it at shared_memory")
