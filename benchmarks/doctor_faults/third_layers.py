"""Third faults of a model's parts: tables, scales, shards, activations, adapters, experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.sides import Alteration
from lockstep import keyed

_ACTIVATIONS = ((0.1, "relu"), (0.01, "quick_gelu"), (0.0, "gelu_pytorch_tanh"))
"""Others than gelu, and what they are away from it at most, at least."""
_RANK, _STRENGTH = 4, 0.15


def short_rotary_table(length: int) -> Alteration:
    """Angles come from a table of so many positions, and what lies behind its end reads its last row."""

    def clamped(
        module: nn.Module, values: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        states, *position = values
        place = named["position_ids"] if "position_ids" in named else position[0]
        return (states, place.clamp(max=length - 1)), {}

    def alter(model: PreTrainedModel) -> None:
        rotary: Any = model.base_model.rotary_emb
        rotary.register_forward_pre_hook(clamped, with_kwargs=True)

    return alter


def activation(away: float) -> str:
    """A name for `hidden_act` where gelu is right."""
    return next(name for least, name in _ACTIVATIONS if away >= least)


def padded_head_scale(channels: int) -> Alteration:
    """Heads are padded for a kernel, which scales by their padded size."""

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model):
            layer.self_attn.scaling = (layer.self_attn.head_dim + channels) ** -0.5

    return alter


def shard_begins_late(count: int) -> Alteration:
    """The embedding lies on two ranks, and the second one takes its first ids for none of its own."""

    def masked(module: nn.Module, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
        first = output.new_tensor(len(module.get_parameter("weight")) // 2)
        lost = (values[0] >= first) & (values[0] < first + count)
        return output.masked_fill(lost[..., None], 0.0)

    def alter(model: PreTrainedModel) -> None:
        model.get_input_embeddings().register_forward_hook(masked)

    return alter


def adapter_dropout(probability: float) -> Alteration:
    """A merged adapter still goes through its own dropout."""

    def alter(model: PreTrainedModel) -> None:
        for place, layer in enumerate(decoder_layers(model)):
            for name in ("q_proj", "v_proj", "o_proj"):
                _adapt(layer.self_attn.get_submodule(name), probability, f"{place} {name}")

    return alter


def _adapt(linear: nn.Module, probability: float, key: str) -> None:
    """What the adapter adds is in the weight, so only what dropout does to its input is added here."""
    dropout = nn.Dropout(probability)
    linear.add_module("lora_dropout", dropout)
    dropout.train()
    usual: Any = linear.forward
    weight_OI = linear.get_parameter("weight")
    draw = keyed.generator("adapter", key)
    down_RI = torch.randn(_RANK, weight_OI.shape[1], generator=draw) / weight_OI.shape[1] ** 0.5
    up_OR = _STRENGTH * torch.randn(weight_OI.shape[0], _RANK, generator=draw)

    def forward(states: Tensor) -> Tensor:
        added = F.linear(F.linear(dropout(states) - states, down_RI.to(states.dtype)), up_OR.to(states.dtype))
        return usual(states) + added

    linear.forward = forward


def fixed_capacity(tokens: int) -> Alteration:
    """Experts have buffers for so many tokens of a pass; those that come later get nothing from them."""

    def dropped(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states, expert_NK, weight_NK = values
        ones = F.one_hot(expert_NK.flatten())
        place = ((ones.cumsum(0) - 1) * ones).sum(-1).view(expert_NK.shape)
        return states, expert_NK, weight_NK.masked_fill(place >= tokens, 0.0)

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model):
            layer.mlp.experts.register_forward_pre_hook(dropped)

    return alter


def decoder_layers(model: PreTrainedModel) -> list[Any]:
    """Its layers."""
    decoder: Any = model.base_model
    return list(decoder.layers)
