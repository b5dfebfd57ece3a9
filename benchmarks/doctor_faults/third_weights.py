"""Third faults of weights on their way to the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.sides import TorchSide
from benchmarks.doctor_faults.third_ground import VOCABULARY
from lockstep import keyed

_BUCKET = 8


def last_bucket_lost(case: Case, size: float) -> None:
    """After a step of the trainer, tensors are sent in buckets, and the last one is not full, so it never goes."""
    names = [name for name, _ in case.train.weights() if "inv_freq" not in name]
    case.train.load([(name, _stepped(name, tensor, size)) for name, tensor in case.train.weights() if name in names])
    stepped = [(name, tensor) for name, tensor in case.train.weights() if name in names]
    for first in range(0, len(stepped) - _BUCKET + 1, _BUCKET):
        case.infer.load(stepped[first : first + _BUCKET])


def _stepped(name: str, tensor: Tensor, size: float) -> Tensor:
    """As Adam steps: each number by the same, up or down."""
    signs = torch.randn(tensor.shape, generator=keyed.generator("third step", name)).sign()
    return tensor + size * tensor.abs().mean() * signs.to(tensor.dtype)


def added_rows_reversed(count: int) -> tuple[Change, ...]:
    """The conversion puts the rows of added tokens, the last ones of the vocabulary, in another order."""

    def converted(tensor: Tensor) -> Tensor:
        if len(tensor) != VOCABULARY:
            return tensor
        return torch.cat([tensor[:-count], tensor[-count:].flip(0)])

    class Converting(TorchSide):
        def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
            super().load(_each(stream))

    def _each(stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        return ((name, converted(tensor)) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for parameter in model.parameters():
            parameter.copy_(converted(parameter.clone()))

    return (Change("infer", Converting, alter),)
