"""The torch learner's way to score, and the torch sampler's way to generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.doctor.backends.in_process import CAPABILITIES, InProcessBackend
from lockstep.doctor.backends.variants import evaluating, in_fp32
from lockstep.doctor.base import USUAL, BackendScores, Capability, Conditions, Network
from lockstep.models import attention
from lockstep.models.heads import LogitsHead, inputs
from lockstep.models.open_kernels import explain_padding
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams


class TorchBackend(InProcessBackend):
    """Implements `doctor.base.Backend`; weights are fp32, and bf16 is by autocast, as the learner has it."""

    name = "torch"
    capabilities: frozenset[Capability] = CAPABILITIES | frozenset[Capability](["fresh"])

    held = "fp32"
    layout = "packed"
    types = ("fp32", "bf16")
    opens_kernels = True

    def attention(self, conditions: Conditions) -> str:
        bf16 = conditions.dtype == "bf16"
        return attention.NAME if explain_padding(self._variants.config(), self.device, bf16) else attention.UNPADDED

    @torch.no_grad()
    def score(self, batch: Batch, conditions: Conditions = USUAL) -> BackendScores:
        asked = self._usual.but(conditions)
        model, columns = self.model(asked), []
        with self.computing(model, asked):
            for chunk in batch.split(1 if asked.layout == "alone" else asked.batch_size or 1):
                columns.append(self.logprob(model, chunk.to(self.device)).float().cpu())
        return BackendScores(torch.cat(columns), tuple(tuple(tokens.tolist()) for tokens in batch.sequences()))

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        asked = self._usual.but(conditions)
        model = self.model(asked)
        with in_fp32(model, asked.parts), evaluating(model, asked.evaluation):
            return self.sampler(model, asked).generate(requests, sampling)

    def network(self, conditions: Conditions = USUAL) -> Network:
        asked = self._usual.but(conditions)
        return _TorchNetwork(self, self.model(asked), asked)

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """log π of the masked tokens [N], 0 elsewhere."""
        outputs = LogitsHead(model)(batch)
        assert outputs.logprob is not None
        return outputs.logprob

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
        """Returns the sampler of a model."""
        return TorchSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    @contextmanager
    def computing(self, model: PreTrainedModel, conditions: Conditions) -> Iterator[None]:
        """Applies the dtype, fp32 parts and mode of the conditions."""
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=conditions.dtype == "bf16"),
            in_fp32(model, conditions.parts),
            evaluating(model, conditions.evaluation),
        ):
            yield


@dataclass(frozen=True)
class _TorchNetwork:
    """Implements `doctor.base.Network`."""

    backend: TorchBackend
    model: PreTrainedModel
    conditions: Conditions

    @property
    def modules(self) -> nn.Module:
        return self.model

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        one = Batch(tokens_T, torch.tensor([tokens_T.numel()]))
        with self.backend.computing(self.model, replace(self.conditions, parts=frozenset())):
            return self.model(**inputs(one.to(self.backend.device))).logits[0].cpu()
