"""The doctor's backends in this process, with what faults need: to alter, to load, to look into, to be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.in_process import InProcessBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import USUAL, Conditions, DType

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


class FaultySide(InProcessBackend):
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


class HFSide(FaultySide, HFBackend):
    """Plain `transformers`."""


class TorchSide(FaultySide, TorchBackend):
    """The torch learner and sampler."""


def _own(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


@torch.no_grad()
def _copy(stream: Mapping[str, Tensor], model: nn.Module) -> None:
    own = _own(model)
    for name, tensor in stream.items():
        own[name].copy_(tensor)
