"""The torch learner's way to score, and the torch sampler's way to generate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.doctor.backends.in_process import InProcessBackend
from lockstep.doctor.base import USUAL, Conditions
from lockstep.models import attention
from lockstep.models.heads import LogitsHead, inputs
from lockstep.models.open_kernels import explain_padding, open_kernels
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams


class TorchBackend(InProcessBackend):
    """Implements `doctor.base.Backend`; weights are fp32, and bf16 is by autocast, as the learner has it."""

    name = "torch"
    held = "fp32"
    layout = "packed"
    types = ("fp32", "bf16")

    def attention(self, conditions: Conditions) -> str:
        padding = explain_padding(self.read_config(), self.device, conditions.dtype == "bf16")
        return attention.NAME if padding else attention.UNPADDED

    def build(self, conditions: Conditions) -> PreTrainedModel:
        model = super().build(conditions)
        open_kernels(model, self.device, conditions.dtype == "bf16")
        return model

    @torch.no_grad()
    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
        asked = self._usual.but(conditions)
        model, columns = self.model(asked), []
        with self.autocast(asked):
            for chunk in batch.split(1 if asked.layout == "alone" else asked.batch_size or 1):
                columns.append(self.logprob(model, chunk.to(self.device)).float().cpu())
        return torch.cat(columns)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        asked = self._usual.but(conditions)
        return self.sampler(self.model(asked), asked).generate(requests, sampling)

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        one = Batch(tokens_T, torch.tensor([tokens_T.numel()])).to(self.device)
        with self.autocast(self._usual):
            return self.model()(**inputs(one)).logits[0].cpu()

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """log π of the masked tokens [N], 0 elsewhere."""
        outputs = LogitsHead(model)(batch)
        assert outputs.logprob is not None
        return outputs.logprob

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
        """Returns the sampler of a model."""
        return TorchSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    def autocast(self, conditions: Conditions) -> torch.autocast:
        """Applies the dtype of the conditions."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=conditions.dtype == "bf16")
