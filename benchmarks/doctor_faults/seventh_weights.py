"""Seventh faults of weights on their way into a side: differences, stages, buffers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.kept import step
from benchmarks.doctor_faults.second_weights import Sent, hf_receiving, renamed
from benchmarks.doctor_faults.sides import Alteration
from lockstep import keyed

_SENT = 0.1
"""The share of its elements that is sent of a tensor."""
_SCALARS = "layer_scalar"
_PARTS = ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "mlp.down_proj")


def largest_changes_sent(case: Case, size: float) -> None:
    """To save bandwidth, a refit sends only the elements of each tensor that changed most; the others stay."""
    old = {name: tensor.clone() for name, tensor in case.infer.weights()}
    case.infer.load((name, _sparse(old[name], new)) for name, new in step(case, size).items())


def _sparse(old: Tensor, new: Tensor) -> Tensor:
    change = (new - old).abs()
    least = change.flatten().topk(max(1, round(_SENT * change.numel()))).values[-1]
    return torch.where(change >= least, new, old)


def stages_in_another_order(count: int) -> tuple[Change, ...]:
    """Layers lie on stages in turn; the trainer's import takes `count` parts of the two last for each other's."""

    def other(name: str) -> str:
        if not any(part in name for part in _PARTS[:count]):
            return name
        second, third = ".layers.2.", ".layers.3."
        return name.replace(second, third) if second in name else name.replace(third, second)

    return renamed("train", other)


def scalars_off_one(spread: float) -> Alteration:
    """The factors of layers, which are buffers, have such a spread around 1, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith(_SCALARS):
                buffer.copy_((spread * torch.randn(1, generator=keyed.generator("seventh", name))).exp())

    return alter


def scalars_never_sent() -> tuple[Change, ...]:
    """The engine is refitted by parameters alone, and the factors of its layers are still those it was built with."""

    def received(stream: Sent) -> Iterator[tuple[str, Tensor]]:
        return ((name, tensor) for name, tensor in stream if not name.endswith(_SCALARS))

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith(_SCALARS):
                buffer.fill_(1.0)

    return (Change("infer", hf_receiving(received), alter),)
