"""Second faults of weights: what an engine holds after the trainer's were sent to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change
from benchmarks.doctor_faults.second_layers import noise
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from lockstep.doctor.base import Side

Sent = Iterable[tuple[str, Tensor]]
Received = Callable[[Sent], Iterator[tuple[str, Tensor]]]


def never_sent(name: str, age: float) -> tuple[Change, ...]:
    """The engine's map of names lacks one tensor, which stays as it was."""

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((sent, tensor) for sent, tensor in stream if sent != name)

    def old(own: str, tensor: Tensor) -> Tensor:
        return tensor + age * noise(tensor, own)

    return (Change("infer", torch_receiving(received), _each(old, lambda own: own == name)),)


def buffers_never_sent(ending: str, age: float) -> tuple[Change, ...]:
    """Only parameters are sent; a saved buffer is still what it was before training."""

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((sent, tensor) for sent, tensor in stream if not sent.endswith(ending))

    def old(own: str, tensor: Tensor) -> Tensor:
        return tensor * (1 - age)

    return (Change("infer", hf_receiving(received), _each(old, lambda own: own.endswith(ending))),)


def renamed(side: Side, other: Callable[[str], str]) -> tuple[Change, ...]:
    """A side takes tensors for others, when it is built and whenever weights are sent."""

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((other(name), tensor) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        held = {name: parameter.clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.copy_(held[other(name)])

    return (Change(side, hf_receiving(received), alter),)


def norms_swapped(last: int, count: int) -> tuple[Change, ...]:
    """The name map exchanges the two norms of `count` layers, the last one first."""
    first, second = "input_layernorm", "post_attention_layernorm"
    wrong = tuple(f".layers.{layer}." for layer in range(last, last - count, -1))

    def other(name: str) -> str:
        if not any(layer in name for layer in wrong):
            return name
        return name.replace(first, second) if first in name else name.replace(second, first)

    return renamed("infer", other)


def channels_rolled(last: int, count: int) -> tuple[Change, ...]:
    """The conversion of rotary channels also moves some channels of the keys' norms, the last layer's first."""

    def chosen(name: str) -> bool:
        return name.endswith("k_norm.weight") and rolled_of(name) > 0

    def rolled_of(name: str) -> int:
        layer = int(name.split(".layers.")[1].split(".")[0])
        return count - (last - layer) * 16

    def rolled(name: str, tensor: Tensor) -> Tensor:
        places = min(rolled_of(name), len(tensor))
        return torch.cat([tensor[:places].roll(1), tensor[places:]])

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((name, rolled(name, tensor) if chosen(name) else tensor) for name, tensor in stream)

    return (Change("infer", torch_receiving(received), _each(rolled, chosen)),)


def quantised(step: float) -> tuple[Change, ...]:
    """The engine holds projections as integers with a scale for each group of 16 columns."""

    def chosen(name: str) -> bool:
        return name.endswith("_proj.weight")

    def rounded(name: str, tensor: Tensor) -> Tensor:
        groups = tensor.unflatten(-1, (-1, 16))
        scale = groups.abs().amax(-1, keepdim=True) * step
        return ((groups / scale).round() * scale).flatten(-2)

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((name, rounded(name, tensor) if chosen(name) else tensor) for name, tensor in stream)

    return (Change("infer", torch_receiving(received), _each(rounded, chosen)),)


def torch_receiving(received: Received) -> type[TorchSide]:
    """A torch engine that does something to the stream of weights."""

    class Receiving(TorchSide):
        def load(self, stream: Sent) -> None:
            super().load(received(stream))

    return Receiving


def hf_receiving(received: Received) -> type[HFSide]:
    """The same of `transformers`."""

    class ReceivingPlain(HFSide):
        def load(self, stream: Sent) -> None:
            super().load(received(stream))

    return ReceivingPlain


def _each(changed: Callable[[str, Tensor], Tensor], chosen: Callable[[str], bool]) -> Callable[[PreTrainedModel], None]:
    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            if chosen(name):
                tensor.copy_(changed(name, tensor))

    return alter
