"""The torch learner's way to score, and the torch sampler's way to generate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.batch import Batch
from lockstep.doctor.backends.variants import (
    IN_PROCESS,
    Alteration,
    Variants,
    evaluating,
    flat,
    in_fp32,
    observed,
    tensors,
)
from lockstep.doctor.base import USUAL, Capability, Conditions, DType, Network, Scores
from lockstep.models import attention
from lockstep.models.heads import LogitsHead, inputs
from lockstep.models.weights import fingerprint
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams


class TorchBackend:
    """Implements `doctor.base.Backend`; weights are fp32, and bf16 is by autocast, as the learner has it.

    Args:
        folder: A Hugging Face folder.
        dtype: Of the computation.
        batch_size: Sequences side by side.
        alter: Done to the model when it is built.
        config: Fields that differ from the folder's configuration.
    """

    name = "torch"
    capabilities: frozenset[Capability] = IN_PROCESS | frozenset[Capability](["fresh"])

    def __init__(
        self,
        folder: str,
        dtype: DType = "fp32",
        batch_size: int = 8,
        alter: Alteration | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if dtype == "fp16":
            raise ValueError("the torch learner computes in fp32 or bf16; choose one of these, or the backend hf")
        self._variants = Variants(folder, "fp32", alter, config)
        self._usual = Conditions(dtype=dtype, batch_size=batch_size, layout="packed")
        self.context = int(self._variants.config().get_text_config().max_position_embeddings)

    def config(self) -> Mapping[str, Any]:
        return flat(self._variants.config())

    def settings(self) -> Mapping[str, Any]:
        return {
            "dtype": self._usual.dtype,
            "kernel": attention.NAME,
            "layout": self._usual.layout,
            "layouts": ("alone", "packed"),
            "batch_size": self._usual.batch_size,
            "training": any(module.training for module in self.model(USUAL).modules()),
        }

    @torch.no_grad()
    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
        asked = self._usual.but(conditions)
        model, parts = self.model(asked), []
        with self.computing(model, asked), observed(model) as seen:
            for part in batch.split(1 if asked.layout == "alone" else asked.batch_size or 1):
                parts.append(self.logprob(model, part).float())
                seen["rows"] = max(seen["rows"], len(part))
        seen |= {"layout": asked.layout, "kernel": attention.NAME}
        return Scores(torch.cat(parts), tuple(tuple(tokens.tolist()) for tokens in batch.sequences()), seen)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        asked = self._usual.but(conditions)
        model = self.model(asked)
        with in_fp32(model, asked.parts), evaluating(model, asked.evaluation):
            return self.sampler(model, asked).generate(requests, sampling)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return tensors(self.model(USUAL))

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        self._variants.load(stream)

    def fingerprints(self) -> Mapping[str, int]:
        return {name: fingerprint(tensor) for name, tensor in self.weights()}

    def network(self, conditions: Conditions = USUAL) -> Network:
        asked = self._usual.but(conditions)
        return _Network(self, self.model(asked), asked)

    def close(self) -> None:
        """It has no processes of its own."""

    def model(self, conditions: Conditions) -> PreTrainedModel:
        """The model for some conditions."""
        return self._variants.model(self._usual.but(conditions), attention.NAME)

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """log π of the masked tokens [N], 0 elsewhere."""
        outputs = LogitsHead(model)(batch)
        assert outputs.logprob is not None
        return outputs.logprob

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> TorchSampler:
        """What generates."""
        return TorchSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    @contextmanager
    def computing(self, model: PreTrainedModel, conditions: Conditions) -> Iterator[None]:
        """In the type, and with the parts in fp32, that the conditions say."""
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=conditions.dtype == "bf16"),
            in_fp32(model, conditions.parts),
            evaluating(model, conditions.evaluation),
        ):
            yield


@dataclass(frozen=True)
class _Network:
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
            return self.model(**inputs(one)).logits[0]
