"""The doctor's backends in this process, with what faults need: to alter, to load, to look into, to be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.batch import Batch
from lockstep.config import DType
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.base import USUAL, Conditions
from lockstep.models import attention
from lockstep.models.heads import LogitsHead, inputs
from lockstep.models.open_kernels import explain_padding, open_kernels
from lockstep.models.precision import autocast
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.types import Request, SamplingParams

Alteration = Callable[[PreTrainedModel], None]
"""Change to a model after loading, such as patches or casts; applied to every copy."""


@dataclass(frozen=True)
class Undo(Conditions):
    """Conditions that take a fault back.

    Attributes:
        what: Words that faults ask for.
        config: Fields of the configuration as they should be.
    """

    what: str = ""
    config: tuple[tuple[str, Any], ...] = ()


def undoes(conditions: Conditions, what: str) -> bool:
    """True if a fault of this kind is to be taken back."""
    return isinstance(conditions, Undo) and conditions.what == what


class FaultySide(HFBackend):
    """A backend whose model and weights can be changed.

    Args:
        alter: Done to the model when it is built.
        config: Fields that differ from the folder's configuration; `a.b` is field b of the mapping a.
    """

    def __init__(
        self, folder: str, dtype: DType = "fp32", batch_size: int = 8, alter: Alteration | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._alter, self._fields = alter, dict(config or {})
        self._loaded: dict[str, Tensor] = {}
        super().__init__(folder, dtype, batch_size)

    def read_config(self) -> PreTrainedConfig:
        config = super().read_config()
        for name, value in self._fields.items():
            field, _, inner = name.partition(".")
            setattr(config, field, {**getattr(config, field), inner: value} if inner else value)
        return config

    def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
        if isinstance(conditions, Undo) and conditions.config:
            self._fields |= dict(conditions.config)
            self._models.clear()
        model = super().model(conditions)
        return model.eval() if undoes(conditions, "training") else model

    def build(self, conditions: Conditions) -> PreTrainedModel:
        model = super().build(conditions)
        if self._alter is not None:
            self._alter(model)
        _copy(self._loaded, model)
        return model

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and tensors of parameters and buffers."""
        yield from ((name, tensor.detach()) for name, tensor in _own(self.model()).items())

    def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Takes tensors by name; the others stay."""
        fresh = {name: tensor.clone() for name, tensor in stream}
        self._loaded |= fresh
        for model in self._models.values():
            _copy(fresh, model)


class HFSide(FaultySide):
    """Plain `transformers`."""

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        """Logits of one sequence alone, [T, V]."""
        return self.model()(input_ids=tokens_T[None], use_cache=False).logits[0]


class PatchableTorch(HFBackend):
    """The torch learner and sampler in steps, each a method; weights are fp32, and bf16 is by autocast."""

    name = "torch"

    def attention(self, conditions: Conditions) -> str:
        padding = explain_padding(self.read_config(), self.device, conditions.dtype or "fp32")
        return attention.NAME if padding else attention.UNPADDED

    def build(self, conditions: Conditions) -> PreTrainedModel:
        model = super().build(replace(conditions, dtype="fp32"))
        open_kernels(model, self.device, conditions.dtype or "fp32")
        return model

    @torch.no_grad()
    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Tensor:
        asked = self._usual.but(conditions)
        model, columns = self.model(asked), []
        with self.autocast(asked):
            for chunk in batch.split(asked.batch_size or 1):
                columns.append(self.logprob(model, chunk).float())
        return torch.cat(columns)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL) -> Batch:
        asked = self._usual.but(conditions)
        return self.sampler(self.model(asked), asked).generate(requests, sampling)

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        """Logits of one sequence alone, [T, V]."""
        with self.autocast(self._usual):
            return self.model()(**inputs(Batch(tokens_T, torch.tensor([tokens_T.numel()])))).logits[0]

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """log π of the masked tokens [N], 0 elsewhere."""
        outputs = LogitsHead(model)(batch)
        assert outputs.logprob is not None
        return outputs.logprob

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
        """Returns the sampler of a model."""
        return TorchSampler(model, conditions.batch_size or 1, conditions.dtype or "fp32")

    def autocast(self, conditions: Conditions) -> torch.autocast:
        """Applies the dtype of the conditions."""
        return autocast(self.device, conditions.dtype or "fp32")


class TorchSide(FaultySide, PatchableTorch):
    """The torch learner and sampler."""


def _own(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


@torch.no_grad()
def _copy(stream: Mapping[str, Tensor], model: nn.Module) -> None:
    own = _own(model)
    for name, tensor in stream.items():
        own[name].copy_(tensor)
