"""Fourth faults of weights on their way to the engine: adapters, names, blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from lockstep import keyed

_RANK = 4
_BLOCK = 16
_MOST = 6.0
_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, _MOST])
"""What four bits can hold, but for the sign."""
_COARSE = 0.1
Sent = Iterable[tuple[str, Tensor]]


def adapter_scaled_twice(case: Case, size: float) -> None:
    """The trainer's adapter is scaled by the root of its rank; who merges it for the engine divides by the rank."""
    held = dict(case.train.weights())
    case.train.load(_merged(held, size))
    case.infer.load(_merged(held, size / math.sqrt(_RANK)))


def _merged(held: dict[str, Tensor], size: float) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in held.items():
        if name.endswith("query_key_value.weight"):
            draw = keyed.generator("adapter", name)
            down_RI = torch.randn(_RANK, tensor.shape[1], generator=draw)
            up_OR = torch.randn(tensor.shape[0], _RANK, generator=draw)
            yield name, tensor + size * tensor.std() * (up_OR @ down_RI)


def head_norms_swapped(last: int, count: int) -> tuple[Change, ...]:
    """The name map takes the norm of the queries for that of the keys in `count` layers, the last one first."""
    wrong = tuple(f".layers.{layer}." for layer in range(last, last - count, -1))

    def other(name: str) -> str:
        if not any(layer in name for layer in wrong):
            return name
        return name.replace("q_norm", "k_norm") if "q_norm" in name else name.replace("k_norm", "q_norm")

    class Renaming(HFSide):
        def load(self, stream: Sent) -> None:
            super().load((other(name), tensor) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        held = {name: parameter.clone() for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.copy_(held[other(name)])

    return (Change("infer", Renaming, alter),)


def experts_in_blocks(step: float) -> tuple[Change, ...]:
    """The engine holds experts in four or eight bits, with a scale for each block; the rest stays as it is."""
    elements = _four_bits if step >= _COARSE else _eight_bits

    def rounded(name: str, tensor: Tensor) -> Tensor:
        return _blocks(tensor, elements) if ".experts." in name else tensor

    class InBlocks(TorchSide):
        def load(self, stream: Sent) -> None:
            super().load((name, rounded(name, tensor)) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(rounded(name, parameter))

    return (Change("infer", InBlocks, alter),)


def _blocks(tensor: Tensor, elements: Callable[[Tensor], Tensor]) -> Tensor:
    """Each block has a power of two for a scale."""
    blocks = tensor.unflatten(-1, (-1, _BLOCK))
    scale = torch.exp2((blocks.abs().amax(-1, keepdim=True) / _MOST).clamp(min=1e-9).log2().ceil())
    return (elements(blocks / scale) * scale).flatten(-2)


def _four_bits(x: Tensor) -> Tensor:
    middles = (_LEVELS[1:] + _LEVELS[:-1]) / 2
    return _LEVELS[torch.bucketize(x.abs().contiguous(), middles)] * x.sign()


def _eight_bits(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)
