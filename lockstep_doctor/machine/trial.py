"""The model and workload of `lockstep gpu-check`: random weights and tokens, without a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep.algorithms.roles import Load
from lockstep.cluster.specs import LearnerSpec
from lockstep.config.machinery import Computation, DType, LearnerSection, SamplerSection
from lockstep.config.optimizer import Optimizer
from lockstep.config.parallel import Parallel
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.memory import FP32, ModelRank
from lockstep.plan.sizes import ModelSizes

TYPES: Mapping[DType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
_OPTIMIZER = Optimizer(lr=1e-3)


@dataclass(frozen=True)
class WorkloadSize:
    """Size of the workload.

    Attributes:
        hidden: Hidden size of the model.
        layers: Number of layers.
        vocabulary: Vocabulary size.
        rows: Number of sequences to sample and train on.
        prompt: Tokens per prompt.
        response: Tokens per response.
        product: Rows and columns of the multiplied matrices.
        copied: Bytes to copy.
    """

    hidden: int
    layers: int
    vocabulary: int
    rows: int
    prompt: int
    response: int
    product: int
    copied: int

    @classmethod
    def for_memory(cls, memory: int | None) -> WorkloadSize:
        """A workload that fits a GPU of `memory` bytes several times; None: a CPU."""
        if memory is None:
            return cls(512, 8, 2048, 8, 32, 32, 1024, 1 << 26)
        if memory < 30e9:
            return cls(1024, 12, 32_000, 64, 128, 128, 8192, 1 << 29)
        return cls(2048, 16, 32_000, 128, 256, 256, 8192, 1 << 31)


@dataclass(frozen=True)
class MachineTrial:
    """A model in a folder and its workload.

    Attributes:
        folder: The model.
        device: Device of the computation.
        gpus: Number of GPUs.
        scale: Size of the workload.
    """

    folder: Path
    device: torch.device
    gpus: int
    scale: WorkloadSize

    @classmethod
    def create_in(
        cls, folder: Path, device: torch.device, gpus: int, scale: WorkloadSize
    ) -> MachineTrial:
        """Writes a random model to the folder."""
        config = AutoConfig.for_model(
            "llama",
            vocab_size=scale.vocabulary,
            hidden_size=scale.hidden,
            intermediate_size=scale.hidden * 11 // 4,
            num_hidden_layers=scale.layers,
            num_attention_heads=max(2, scale.hidden // 128),
            num_key_value_heads=max(1, scale.hidden // 256),
            max_position_embeddings=scale.prompt + scale.response,
            tie_word_embeddings=False,
        )
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return cls(folder, device, gpus, scale)

    def build_computation(self, dtype: DType) -> Computation:
        """Device and type of learner and sampler."""
        return Computation(device="cuda" if self.device.type == "cuda" else "cpu", dtype=dtype)

    def build_learner_spec(self, dtype: DType, ranks: int = 1) -> LearnerSpec:
        """A learner on one device, or sharded over several data-parallel ranks."""
        section = LearnerSection.from_computation(
            self.build_computation(dtype), parallel=Parallel(dp=ranks)
        )
        return LearnerSpec(str(self.folder), "logits", section, _OPTIMIZER, seed=0)

    def build_plan_rank(self, dtype: DType) -> ModelRank:
        """The learner as `lockstep plan` describes it; it samples and trains on all rows once."""
        length = self.scale.prompt + self.scale.response
        rows = self.scale.rows
        sizes = ModelSizes.from_model(
            build_skeleton(read_config(str(self.folder)), str(self.folder))
        )
        return ModelRank(
            sizes,
            self.build_learner_spec(dtype).section,
            Load(length, 1, rows, scored=rows, generated=length),
        )

    @property
    def cache_gib(self) -> float:
        """Cache size in GiB: keys and values of all rows, twice; leaves memory to other engines."""
        sizes = self.build_plan_rank("fp32").sizes
        tokens = self.scale.rows * (self.scale.prompt + self.scale.response)
        return 2 * FP32 * sizes.cache * tokens / 2**30

    def build_sampler_section(self, **options: str | float) -> SamplerSection:
        """A sampler that runs all rows concurrently."""
        return SamplerSection.model_validate({"max_batch_size": self.scale.rows, **options})

    @cached_property
    def requests(self) -> list[Request]:
        """Prompts of random tokens."""
        keys = torch.tensor([keyed.hash_key("gpu-check", row) for row in range(self.scale.rows)])
        tokens = (
            keyed.draw_bits(keys, torch.arange(self.scale.prompt))
            .remainder(self.scale.vocabulary)
            .tolist()
        )
        requests = list[Request]()
        for number, row in enumerate(tokens):
            requests.append(Request(tuple(row), keyed.hash_key("response", number)))
        return requests

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters: all responses have full length."""
        return SamplingParams(self.scale.response)

    @cached_property
    def batch(self) -> Batch:
        """Sequences of random tokens; all tokens but the first of each sequence are trained on."""
        rows = self.scale.rows
        length = self.scale.prompt + self.scale.response
        keys = torch.tensor([keyed.hash_key("batch", row) for row in range(rows)])
        tokens = (
            keyed.draw_bits(keys, torch.arange(length)).remainder(self.scale.vocabulary).flatten()
        )
        mask = (torch.arange(length) > 0).repeat(rows)
        return Batch(tokens, torch.full((rows,), length), {"mask": mask})
