"""Seventh faults of a model's parts: angles, biases, norms, activations, sinks, embeddings, projections."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from benchmarks.doctor_faults.fault import Change
from benchmarks.doctor_faults.means import linears as linears_of
from benchmarks.doctor_faults.means import some_layers, type_with
from benchmarks.doctor_faults.second_layers import layers, linears
from benchmarks.doctor_faults.second_scoring import parallel
from benchmarks.doctor_faults.sides import Alteration, HFSide, undoes
from lockstep.doctor.base import USUAL, Conditions

_SINKLESS = "sinkless"
_RANKS = 2
_ROW_PARALLEL = (".dense", ".fc2")


def angles_in_low_type(rounding: float) -> type[HFSide]:
    """The trainer's rotary embedding multiplies positions and frequencies in a low type, so that late tokens err."""
    dtype = type_with(rounding)

    def low(rotary: Any, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle_BTF = position_ids[..., None].to(dtype) * rotary.inv_freq.to(dtype)
        both = torch.cat([angle_BTF, angle_BTF], -1)
        scale = rotary.attention_scaling
        return (both.cos() * scale).to(states.dtype), (both.sin() * scale).to(states.dtype)

    class AnglesInLowType(HFSide):
        def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
            model = super().model(conditions)
            rotary: Any = model.base_model.rotary_emb
            usual = type(rotary).forward.__get__(rotary)
            rotary.forward = usual if undoes(conditions, "rope") else partial(low, rotary)
            return model

    return AnglesInLowType


def biases_scaled(factor: float) -> Alteration:
    """Biases of row-parallel projections are so much smaller, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for linear in linears(model, *_ROW_PARALLEL):
            linear.bias.mul_(factor)

    return alter


def bias_of_every_rank() -> tuple[Change, ...]:
    """Each of the engine's ranks adds the bias to its part of a sum, so that it counts as often as there are ranks."""

    def added(linear: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, linear.weight) + _RANKS * linear.bias

    def alter(model: PreTrainedModel) -> None:
        for linear in linears(model, *_ROW_PARALLEL):
            vars(linear)["forward"] = partial(added, linear)

    return (Change("infer", parallel(_RANKS), alter),)


def epsilon_outside_the_root(model: PreTrainedModel) -> None:
    """The trainer's fused norm adds the epsilon to the root of the mean square, not to the mean square."""

    def normed(norm: Any, states: Tensor) -> Tensor:
        root = states.float().square().mean(-1, keepdim=True).sqrt()
        return norm.weight * (states.float() / (root + norm.variance_epsilon)).to(states.dtype)

    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            vars(module)["forward"] = partial(normed, module)


class _Table(nn.Module):
    """An activation that is known at steps only."""

    def __init__(self, exact: nn.Module, step: float) -> None:
        super().__init__()
        self._exact, self._step = exact, step

    def forward(self, x: Tensor) -> Tensor:
        return self._exact((x / self._step).round() * self._step)


def activation_from_a_table(step: float) -> Alteration:
    """The engine's feed-forward looks its activation up in a table, at the nearest step."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.act_fn = _Table(layer.mlp.act_fn, step)

    return alter


def sinks_of(strength: float) -> Alteration:
    """Sinks weigh on average as much as so many keys of score 0, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.self_attn.sinks += torch.tensor(strength).log().to(layer.self_attn.sinks.dtype)

    return alter


def _without_sinks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    causal = attention_mask is None and query.shape[2] > 1
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2), None


AttentionInterface.register(_SINKLESS, _without_sinks)
AttentionMaskInterface.register(_SINKLESS, sdpa_mask)


class Sinkless(HFSide):
    """The engine's attention kernel takes no sinks, and nobody asks whether the model has some."""

    def attention(self, conditions: Conditions) -> str:
        return conditions.kernel or _SINKLESS


def added_rows_clamped(count: int) -> Alteration:
    """The engine's embedding has no rows for the last ids, those of added tokens, and clamps them to its last row."""

    def alter(model: PreTrainedModel) -> None:
        def clamped(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (values[0].clamp(max=len(module.get_parameter("weight")) - 1 - count),)

        model.get_input_embeddings().register_forward_pre_hook(clamped)

    return alter


def fake_quantised(step: float) -> Alteration:
    """The trainer's projections keep all bits and multiply by what few bits would hold; the engine does not know."""

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        low, high = linear.weight.amin(1, keepdim=True), linear.weight.amax(1, keepdim=True)
        width = (high - low).clamp(min=1e-9) * step
        return F.linear(x, ((linear.weight - low) / width).round() * width + low, linear.bias)

    def alter(model: PreTrainedModel) -> None:
        for linear in linears_of(some_layers(model, 1.0)):
            vars(linear)["forward"] = partial(forward, linear)

    return alter
