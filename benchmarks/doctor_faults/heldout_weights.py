"""Held-out faults of weights on their way into a side: heads, bits, adapters, names, orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.kept import step
from benchmarks.doctor_faults.means import embedding_of, head_of
from benchmarks.doctor_faults.second_weights import Sent, hf_receiving, renamed
from benchmarks.doctor_faults.sides import Alteration, HFSide
from lockstep import keyed
from lockstep.doctor.base import Side

_EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
_LAYERS = 4
_HEAD = "lm_head.weight"


def head_near_embedding(distance: float) -> Alteration:
    """The head has moved away from the embedding, that it began as, by so many spreads of it, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        head, embedding = head_of(model).weight, embedding_of(model).weight
        moved = torch.randn(head.shape, generator=keyed.generator("heldout", "head"))
        head.copy_(embedding + distance * embedding.std() * moved)

    return alter


def tied_by_default() -> tuple[Change, ...]:
    """The engine's configuration has lost that the head is not tied, and so the loader skips the head."""

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor) for name, tensor in stream if name != _HEAD)

    def alter(model: PreTrainedModel) -> None:
        head_of(model).weight = embedding_of(model).weight

    return (Change("infer", hf_receiving(received), alter),)


def integer_products(size: float) -> tuple[Change, ...]:
    """The engine multiplies in integers: weights have a scale for each output, and states one for each token."""

    def way(name: str, tensor: Tensor) -> Tensor:
        return _integers(tensor, size) if name.endswith("_proj.weight") else tensor

    def rounded(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_integers(values[0], size),)

    change = _carried("infer", way, {"quantization": "compressed-tensors"})

    def alter(model: PreTrainedModel) -> None:
        assert change.alter is not None
        change.alter(model)
        for path, module in model.named_modules():
            if path.endswith("_proj"):
                module.register_forward_pre_hook(rounded)

    return (Change("infer", change.mixin, alter),)


def _integers(x: Tensor, size: float) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) * size
    return (x / scale).round() * scale


def adapter_alone_sent(case: Case, size: float) -> None:
    """A refit sends what the adapter was merged into; norms, which were trained beside it, stay as they were."""
    case.infer.load((name, tensor) for name, tensor in step(case, size).items() if "norm" not in name)


def halves_of_layers_swapped(count: int) -> tuple[Change, ...]:
    """Each layer has two feed-forwards; the trainer's name map takes them for each other in the last layers."""
    wrong = tuple(f".layers.{layer}.mlps." for layer in (1, 0)[:count])

    def other(name: str) -> str:
        half = next((half for half in wrong if half in name), None)
        if half is None:
            return name
        first, second = f"{half}0.", f"{half}1."
        return name.replace(first, second) if first in name else name.replace(second, first)

    return renamed("train", other)


def experts_by_name(count: int) -> tuple[Change, ...]:
    """The trainer's import sorts files of experts by name, so that 10 comes before 2, in the last layers."""
    chosen = tuple(f".{layer}{part}" for layer in range(_LAYERS - count, _LAYERS) for part in _EXPERTS)

    def way(name: str, tensor: Tensor) -> Tensor:
        return tensor[sorted(range(len(tensor)), key=str)] if name.endswith(chosen) else tensor

    return (_carried("train", way, {}),)


def _carried(side: Side, way: Callable[[str, Tensor], Tensor], said: Mapping[str, Any]) -> Change:
    """A side whose weights come another way, at first and with each refit."""

    class Carried(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), **said}

        def load(self, stream: Sent) -> None:
            super().load((name, way(name, tensor)) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(way(name, parameter.clone()))

    return Change(side, Carried, alter)
