"""Sixth faults of weights on their way into a side: names, ranks, orders, bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.kept import step
from benchmarks.doctor_faults.sides import HFSide
from benchmarks.doctor_faults.sixth_ground import HEADS
from lockstep.doctor.base import Side

Sent = Iterable[tuple[str, Tensor]]
_BLOCK = 8
_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
"""Where a rank has a part of the inputs; of other projections it has a part of the outputs, and of experts some."""


def _carried(side: Side, way: Callable[[str, Tensor], tuple[str, Tensor]], said: Mapping[str, Any]) -> Change:
    """A side whose weights come another way, at first and with each refit."""

    class Carried(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), **said}

        def load(self, stream: Sent) -> None:
            super().load(way(name, tensor) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        own = dict(model.named_parameters())
        for name, tensor in [way(name, parameter.clone()) for name, parameter in own.items()]:
            own[name].copy_(tensor)

    return Change(side, Carried, alter)


def _last_layers(count: int, path: str) -> tuple[str, ...]:
    return tuple(f"{path}.{layer}." for layer in range(4 - count, 4))


def keys_for_values(count: int) -> tuple[Change, ...]:
    """The fused projection's loader has the shards of keys and values the wrong way round, in the last layers."""
    wrong = _last_layers(count, ".layers")
    other = {"k_proj": "v_proj", "v_proj": "k_proj"}

    def way(name: str, tensor: Tensor) -> tuple[str, Tensor]:
        part = name.split(".")[-2] if any(layer in name for layer in wrong) else ""
        return name.replace(part, other[part]) if part in other else name, tensor

    return (_carried("infer", way, {}),)


def heads_not_interleaved(count: int) -> tuple[Change, ...]:
    """The trainer's import takes queries, keys and values for three blocks, and the file has them head by head."""
    wrong = _last_layers(count, ".h")

    def way(name: str, tensor: Tensor) -> tuple[str, Tensor]:
        if "query_key_value" in name and any(layer in name for layer in wrong):
            return name, tensor.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)
        return name, tensor

    return (_carried("train", way, {}),)


def normal_floats(levels: int) -> tuple[Change, ...]:
    """The trainer trains an adapter over a base of few bits, whose levels are quantiles; the engine has all bits."""
    level = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(levels) + 0.5) / levels)
    level, middles = level / level[-1], (level[1:] + level[:-1]) / (2 * level[-1])

    def way(name: str, tensor: Tensor) -> tuple[str, Tensor]:
        if not name.endswith(("_proj.weight", "_proj")):
            return name, tensor
        blocks = tensor.unflatten(-1, (-1, _BLOCK))
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-9)
        near = torch.bucketize((blocks / scale).contiguous(), middles.to(tensor.dtype))
        return name, (level.to(tensor.dtype)[near] * scale).flatten(-2)

    bits = levels.bit_length() - 1
    return (_carried("train", way, {"quantization": "bitsandbytes", f"load_in_{bits}bit": True}),)


def second_rank_missed(case: Case, size: float) -> None:
    """The engine's layers lie on two ranks, and the second one misses the refit after a step."""
    old = {name: tensor.clone() for name, tensor in case.infer.weights()}
    case.infer.load(_first_halves(step(case, size), old))


def _first_halves(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in new.items():
        dim = 1 if name.endswith(_BY_COLUMNS) else 0
        halves = tensor.tensor_split(2, dim)[0], old[name].tensor_split(2, dim)[1]
        yield name, torch.cat(halves, dim) if "_proj" in name else tensor
